"""Limits for each client: what counts as one client, and how many connections and requests it may have."""

import contextlib
import http.client
import resource
import select
import socket
import subprocess
import sys
from pathlib import Path

import httpx2 as httpx
import pytest
from raw_http import read_status
from serve_folders import running

from allyouneed.serve import connections
from allyouneed.serve.clients import client_of, key_client
from allyouneed.serve.gate import BODIES
from waiting import PATIENCE, until

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


def connect(url: str, address: str) -> socket.socket:
    """Connect from one of the loopback addresses."""
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE, source_address=(address, 0))


def status_of(connection: socket.socket, path: str = "/health") -> int | None:
    """Send a request and return the status of its response, or None if the connection was closed."""
    with contextlib.suppress(ConnectionError):
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return read_status(connection)
    return None


def test_silent_connections_of_one_address_do_not_exclude_others(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More connections than the server has in total."""
    monkeypatch.setattr(connections, "GRACE", 3600.0)  # all are new, also on a busy machine
    with running(folders[:1], connections=40, client_connections=10) as (url, _), contextlib.ExitStack() as opened:
        silent = [opened.enter_context(connect(url, "127.0.0.2")) for _ in range(60)]
        refused = opened.enter_context(connect(url, "127.0.0.2"))
        assert read_status(refused) == 429
        for _ in range(3):
            with connect(url, "127.0.0.1") as connection:
                assert [status_of(connection) for _ in range(3)] == [200] * 3
        assert status_of(silent[0]) == 200  # those within the limit are kept, and work


def test_new_connections_replace_idle_ones_of_their_address(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "GRACE", 0.0)
    with running(folders[:1], connections=40, client_connections=10) as (url, _), contextlib.ExitStack() as opened:
        other = opened.enter_context(connect(url, "127.0.0.1"))
        assert status_of(other) == 200
        mine = [opened.enter_context(connect(url, "127.0.0.2")) for _ in range(30)]
        assert [status_of(one) for one in mine[-10:]] == [200] * 10
        assert [status_of(one) for one in mine[:20]] == [None] * 20
        assert status_of(other) == 200


def test_a_response_that_is_being_sent_is_not_cut_off(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GRACE", 0.0)
    with (
        running(folders[:1], send_buffer=4096, connections=40, client_connections=3) as (url, backend),
        contextlib.ExitStack() as opened,
    ):
        slow = opened.enter_context(socket.socket())
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(PATIENCE)
        host, port = url.removeprefix("http://").split(":")
        slow.connect((host, int(port)))
        slow.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        slow.recv(1, socket.MSG_PEEK)
        until(lambda: not backend.active)
        for _ in range(6):
            assert status_of(opened.enter_context(connect(url, "127.0.0.1"))) == 200
        answer = http.client.HTTPResponse(slow)
        answer.begin()
        assert len(answer.read()) == int(answer.headers["content-length"])


def test_all_connections_in_use(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle connection of the address with the most connections makes room."""
    monkeypatch.setattr(connections, "GRACE", 0.0)
    with running(folders[:1], connections=10, client_connections=8) as (url, _), contextlib.ExitStack() as opened:
        polite = [opened.enter_context(connect(url, "127.0.0.1")) for _ in range(3)]
        assert [status_of(one) for one in polite] == [200] * 3
        for _ in range(20):
            opened.enter_context(connect(url, "127.0.0.2"))
        for _ in range(2):
            polite.append(opened.enter_context(connect(url, "127.0.0.3")))
        assert [status_of(one) for one in polite] == [200] * 5


def test_a_trusted_proxy_may_open_all_connections(folders: list[Path]) -> None:
    """Its connections belong to many clients. Requests are counted by the address that it forwards."""
    settings = {"connections": 20, "client_connections": 2, "client_requests": 1, "trust_proxy": ["127.0.0.2"]}
    with running(folders[:1], **settings) as (url, backend), contextlib.ExitStack() as opened:
        some = [opened.enter_context(connect(url, "127.0.0.2")) for _ in range(12)]
        assert [status_of(one) for one in some] == [200] * 12
        head = "POST /score HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 10.0.0.5\r\nContent-Length: 50\r\n\r\n"
        some[0].sendall(head.encode())
        until(lambda: backend.active)
        some[1].sendall(head.encode())
        assert read_status(some[1]) == 429
        assert status_of(some[2], "/v1/models") == 200


def test_the_limit_of_open_files_is_raised() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = "import resource; from allyouneed.serve.connections import raise_file_limit; raise_file_limit(300); "
    code += "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    small = min(hard, 400)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (small, hard)),
    )
    assert int(done.stdout) == min(hard, 556)


@pytest.mark.parametrize("path", ["/v1/completions", "/translate"])
def test_requests_in_progress_of_one_client_are_bounded(folders: list[Path], path: str) -> None:
    """Their bodies never end. Other clients, and health checks of the same client, are answered."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"
    with running(folders[:1], client_requests=3) as (url, backend), contextlib.ExitStack() as opened:
        for _ in range(3):
            opened.enter_context(connect(url, "127.0.0.2")).sendall(head.encode())
        until(lambda: backend.active == 3)
        greedy, polite = (opened.enter_context(connect(url, f"127.0.0.{place}")) for place in (2, 3))
        assert [status_of(greedy, where) for where in ("/v1/models", "/health", "/metrics")] == [429, 200, 200]
        assert status_of(polite, "/v1/models") == 200


def test_bodies_of_one_client_are_bounded(folders: list[Path]) -> None:
    """Bodies of which the last byte is missing. Their memory is free again when the client has gone."""
    head = "POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10000\r\n\r\n"
    with running(folders[:1], max_body=10_000) as (url, backend), contextlib.ExitStack() as opened:
        some = [opened.enter_context(connect(url, "127.0.0.2")) for _ in range(BODIES + 3)]
        for one in some:
            one.sendall(head.encode() + b"a" * 9_999)
        statuses = [read_status(one) for one in select.select(some, [], [], PATIENCE)[0]]
        assert set(statuses) == {429}
        with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.3")) as other:
            assert other.post(f"{url}/score", json={"model": "none", "text": "a" * 8_000}).status_code == 404
        for one in some:
            one.close()
        until(lambda: not backend.active)
        with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2")) as same:
            assert same.post(f"{url}/score", json={"model": "none", "text": "a" * 8_000}).status_code == 404


def test_requests_are_counted_by_key(folders: list[Path]) -> None:
    """One client with two addresses, and two clients behind one address."""
    with running(folders[:1], client_requests=1, keys=["one", "two"]) as (url, backend):
        head = "POST /score HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer one\r\nContent-Length: 50\r\n\r\n"
        with connect(url, "127.0.0.2") as connection:
            connection.sendall(head.encode())
            until(lambda: backend.active)
            for key, status in (("one", 429), ("two", 200)):
                found = httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"})
                assert found.status_code == status
                fields = {"q": "one", "source": "en", "target": "de", "api_key": key}
                assert httpx.post(f"{url}/translate", data=fields).status_code == status
