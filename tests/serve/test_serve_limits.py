"""Limits for each client: what counts as one client."""

import pytest

from allyouneed.serve.clients import client_of, key_client

pytestmark = pytest.mark.no_shapes


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        (("127.0.0.2", 5), "127.0.0.2"),
        (("2001:db8:1:2:3:4:5:6", 5), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5), "fe80::/64"),
        (("::ffff:10.0.0.1", 5), "10.0.0.1"),
        (("somewhere", 5), "somewhere"),
        (None, "local"),
    ],
)
def test_the_client_is_an_address_or_a_network(peer: tuple[str, int] | None, client: str) -> None:
    assert client_of({"type": "http", "client": peer}) == client
    assert client_of({"type": "http", "client": peer, "state": {}}) == client


def test_the_client_is_the_key_that_was_checked() -> None:
    scope = {"type": "http", "client": ("127.0.0.1", 5), "state": {"client": key_client("open-sesame")}}
    assert client_of(scope) == key_client("open-sesame")
    assert "sesame" not in client_of(scope)
