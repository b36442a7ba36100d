"""The `Host` header: which names and addresses are accepted."""

import contextlib
import json
import socket
from pathlib import Path

import httpx2 as httpx
import pytest
from serve_folders import running

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.serve import ServeConfig
from waiting import PATIENCE

pytestmark = pytest.mark.no_shapes


def get(url: str, *hosts: str, version: str = "1.1", path: str = "/health") -> tuple[int, str]:
    """Send a request with these `Host` headers. Return the status and the body of the response."""
    host, port = url.removeprefix("http://").split(":")
    lines = [f"GET {path} HTTP/{version}", *(f"Host: {one}" for one in hosts), "Connection: close", "", ""]
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall("\r\n".join(lines).encode("latin-1"))
        answer = b""
        with contextlib.suppress(ConnectionError):
            while more := connection.recv(1 << 16):
                answer += more
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8000",
        "LocalHost.",
        "127.0.0.1",
        "127.9.9.9:80",
        "[::1]:8000",
        "192.168.1.2",
        "[fe80::1]",
    ],
)
def test_loopback_names_and_addresses_are_accepted(url: str, host: str) -> None:
    """An address cannot be rebound, whichever it is."""
    assert get(url, host)[0] == 200


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/translate", "/page/main.js", "/nothing"])
def test_foreign_names_are_refused_everywhere(url: str, path: str) -> None:
    """A name that a foreign page has pointed at this address."""
    status, body = get(url, "rebound.example:8000", path=path)
    assert status == 400
    assert "rebound.example" in body
    assert "--allow-host" in body


@pytest.mark.parametrize(
    "hosts",
    [
        (),
        ("localhost", "localhost"),
        ("localhost", "rebound.example"),
        ("",),
        ("localhost rebound.example",),
        ("localhost,rebound.example",),
        ("localhost@rebound.example",),
        ("localhost/rebound.example",),
        ("localhost.rebound.example",),
        ("127.0.0.1.rebound.example",),
        ("[::1].rebound.example",),
        ("[rebound.example]",),
        ("rebound.example:localhost",),
        ("::1",),
        ("\xfclocalhost",),
    ],
    ids=str,
)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_missing_duplicate_and_malformed_hosts(url: str, hosts: tuple[str, ...], version: str) -> None:
    status, body = get(url, *hosts, version=version)
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_host")


def test_names_that_the_operator_states(folders: list[Path]) -> None:
    with running(folders[:1], hosts=["Models.Example"], keys=["open-sesame"]) as (url, _):
        assert get(url, "models.example:443")[0] == 200
        assert get(url, "localhost")[0] == 200
        assert get(url, "models.example", path="/v1/models")[0] == 401
        assert get(url, "other.example")[0] == 400
        headers = {"Host": "other.example", "Authorization": "Bearer open-sesame"}
        assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 400
    with running(folders[:1], hosts=["*"]) as (url, _):
        assert get(url, "other.example")[0] == 200
        assert get(url)[0] == 400
        assert get(url, "a", "b")[0] == 400


@pytest.mark.parametrize("name", ["example.org:80", "http://example.org", "", "*.example.org", "a b", "[::1]"])
def test_settings_that_are_no_names(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a host name; write"):
        parse(ServeConfig, {"hosts": [name]})
