"""Timeouts of connections: requests that arrive byte by byte or not at all, and responses that are not read."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import uvicorn
from serve_folders import running, slow_down
from uvicorn.server import ServerState

from allyouneed.serve import ServeConfig
from allyouneed.serve.connections import Connections
from allyouneed.serve.protocol import MAX_PIPELINED, Protocol

pytestmark = pytest.mark.no_shapes

ARRIVAL = 0.5
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def impatient(folders: list[Path]) -> Iterator[tuple[str, int]]:
    """The address of a server with an arrival timeout of half a second."""
    with running(folders[3:4], arrival=ARRIVAL) as (url, _):
        host, port = url.removeprefix("http://").split(":")
        yield host, int(port)


def post_bytes(path: str, body: dict[str, Any], *, more: int = 0) -> bytes:
    """Return a raw request. `more`: bytes that its Content-Length promises but that are not sent."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content) + more}\r\n\r\n".encode() + content


def receive_all(connection: socket.socket) -> bytes:
    """Return everything until the server closes the connection. Fail with a timeout if it never does."""
    whole = b""
    with contextlib.suppress(ConnectionError):
        while more := connection.recv(1 << 16):
            whole += more
    return whole


@contextlib.contextmanager
def trickling(connection: socket.socket, piece: bytes = b"a") -> Iterator[None]:
    """Send a few bytes at regular intervals from another thread."""
    done = threading.Event()

    def send() -> None:
        with contextlib.suppress(OSError):
            while not done.wait(ARRIVAL / 5):
                connection.sendall(piece)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize(
    ("begin", "piece", "before"),
    [
        (b"GET /", b"a", 0),
        (HEALTH + b"X-Long: ", b"a", 0),
        (HEALTH, b"X: a\r\n", 0),
        (b"\r\n", b"\r\n", 0),
        (HEALTH + b"\r\n" + HEALTH + b"X-Long: ", b"a", 1),
    ],
    ids=["line", "header", "headers", "empty lines", "header of the next request"],
)
def test_slow_headers_time_out(impatient: tuple[str, int], begin: bytes, piece: bytes, before: int) -> None:
    with socket.create_connection(impatient, timeout=20) as connection:
        connection.sendall(begin)
        with trickling(connection, piece):
            answer = receive_all(connection)
    assert answer.count(b"HTTP/1.1 200") == before
    head, _, body = answer[answer.index(b"HTTP/1.1 408") :].partition(b"\r\n\r\n")
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "request_timeout")
    assert "within 0.5 seconds" in error["message"]


def test_silent_connections_time_out(impatient: tuple[str, int]) -> None:
    """Browsers open connections in advance. Without a request there is no response."""
    with socket.create_connection(impatient, timeout=20) as connection:
        assert receive_all(connection) == b""


def test_slow_bodies_time_out(impatient: tuple[str, int]) -> None:
    with socket.create_connection(impatient, timeout=20) as connection:
        connection.sendall(post_bytes("/v1/completions", {}, more=10_000))
        with trickling(connection):
            answer = receive_all(connection)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"] == "the body did not arrive in time"


def test_a_slow_body_after_its_response_times_out(impatient: tuple[str, int]) -> None:
    with socket.create_connection(impatient, timeout=20) as connection:
        connection.sendall(post_bytes("/score", {}, more=10_000).replace(b"Host: localhost", b"Host: elsewhere"))
        with trickling(connection):
            answer = receive_all(connection)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose responses take much longer than the arrival timeout."""
    slow_down(monkeypatch, ARRIVAL / 10)


LONG = {"model": "language", "prompt": "to be", "max_tokens": 40, "temperature": 0}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("stream", [False, True])
def test_no_timeout_while_a_response_is_produced(impatient: tuple[str, int], stream: bool) -> None:
    """Also while a complete request is pipelined, followed by one that never ends."""
    request = post_bytes("/v1/completions", {**LONG, "stream": stream})
    with socket.create_connection(impatient, timeout=60) as connection:
        connection.sendall(request)
        time.sleep(ARRIVAL / 2)
        connection.sendall(request + HEALTH + b"X-Long: ")
        answer = receive_all(connection)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.count(b'"finish_reason":"length"') == 2
    assert answer.count(b"HTTP/1.1 408") <= 1
    assert answer.rfind(b'"finish_reason"') < answer.find(b"HTTP/1.1 408") or b"HTTP/1.1 408" not in answer


def test_a_connection_may_idle_between_requests(impatient: tuple[str, int]) -> None:
    with socket.create_connection(impatient, timeout=20) as connection:
        for _ in range(2):
            connection.sendall(HEALTH + b"\r\n")
            assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
            time.sleep(3 * ARRIVAL)  # uvicorn's keep-alive timeout is five seconds


def test_unread_responses_end_the_connection(impatient: tuple[str, int], caplog: pytest.LogCaptureFixture) -> None:
    """The responses exceed all buffers on the way. As the client does not read, it notices the end by writing."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        connection.settimeout(60)
        connection.connect(impatient)
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * (MAX_PIPELINED - 1))

        def write() -> None:
            for _ in range(600):
                time.sleep(ARRIVAL / 5)
                connection.send(b"\r\n")

        with pytest.raises(ConnectionError):
            write()
    assert not caplog.records


@pytest.mark.parametrize("closing", [False, True])
def test_slow_readers_are_kept(closing: bool) -> None:
    """Only a client that read nothing between two checks is disconnected, also while the connection is closing."""
    transport, loop = MagicMock(), MagicMock()
    transport.get_extra_info.return_value = None
    transport.is_closing.return_value = closing
    config = uvicorn.Config(MagicMock(), lifespan="off", log_config=None)
    protocol = Protocol(
        config, ServerState(), {}, loop, arrival=30.0, open_connections=Connections(ServeConfig(), loop)
    )
    protocol.connection_made(transport)

    def check(unread: int) -> bool:
        """Run the check with this many unread bytes. Return True if the connection was aborted."""
        transport.get_write_buffer_size.return_value = unread
        (seconds, act), _ = loop.call_later.call_args
        assert seconds == 30
        act()
        return bool(transport.abort.called)

    if not closing:
        assert not any(check(99) for _ in range(3))  # writing is not paused, so the buffer may grow
        protocol.pause_writing()
    assert not any(check(unread) for unread in (99, 98, 97, 0, 0, 97))
    if not closing:
        protocol.resume_writing()  # everything was read, and as much was written again
        protocol.pause_writing()
        assert not check(97)
    assert check(97)


def test_pipelined_requests_are_bounded(impatient: tuple[str, int]) -> None:
    last = HEALTH + b"Connection: close\r\n\r\n"
    with socket.create_connection(impatient, timeout=60) as connection:
        connection.sendall((HEALTH + b"\r\n") * MAX_PIPELINED + last)
        assert receive_all(connection).count(b"HTTP/1.1 200") == MAX_PIPELINED + 1
    with socket.create_connection(impatient, timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n\r\n" * 10 * MAX_PIPELINED)
        answer = receive_all(connection)
    assert b"HTTP/1.1 400" in answer
    assert answer.endswith(b"more than 128 requests at once")
