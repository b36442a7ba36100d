"""Timeouts of connections: requests that arrive byte by byte or not at all, and responses that are not read."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import uvicorn
from raw_http import read_status
from serve_folders import running, slow_down
from uvicorn.server import ServerState

from allyouneed.serve import ServeConfig
from allyouneed.serve.connections import Connections
from allyouneed.serve.protocol import MAX_PIPELINED, Protocol
from waiting import PATIENCE

pytestmark = pytest.mark.no_shapes

ARRIVAL = 2.0  # seconds; a busy machine stops a process for a shorter time
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def impatient(folders: list[Path]) -> Iterator[tuple[str, int]]:
    """The address of a server with an arrival timeout of two seconds."""
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
    """Send a few bytes at regular intervals from another thread, or nothing."""
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


# The start of a request, and the bytes that follow it at regular intervals.
SLOW = {
    "nothing": (b"", b""),
    "line": (b"GET /", b"a"),
    "header": (HEALTH + b"X-Long: ", b"a"),
    "headers": (HEALTH, b"X: a\r\n"),
    "empty lines": (b"\r\n", b"\r\n"),
    "header of the next request": (HEALTH + b"\r\n" + HEALTH + b"X-Long: ", b"a"),
    "body": (post_bytes("/v1/completions", {}, more=10_000), b"a"),
    "body that stops": (post_bytes("/v1/completions", {}, more=10_000), b""),
    "body after its response": (
        post_bytes("/score", {}, more=10_000).replace(b"Host: localhost", b"Host: elsewhere"),
        b"a",
    ),
}


@pytest.fixture(scope="module")
def answers(impatient: tuple[str, int]) -> dict[str, bytes]:
    """All that the server sends to slow clients, until it closes the connection."""

    def send_slowly(case: tuple[bytes, bytes]) -> bytes:
        begin, piece = case
        with socket.create_connection(impatient, timeout=PATIENCE) as connection:
            connection.sendall(begin)
            with trickling(connection, piece):
                return receive_all(connection)

    with ThreadPoolExecutor(len(SLOW)) as pool:
        return dict(zip(SLOW, pool.map(send_slowly, SLOW.values()), strict=True))


@pytest.mark.parametrize("name", ["line", "header", "headers", "empty lines", "header of the next request"])
def test_slow_headers_time_out(answers: dict[str, bytes], name: str) -> None:
    answer = answers[name]
    assert answer.count(b"HTTP/1.1 200") == ("next" in name)
    head, _, body = answer[answer.index(b"HTTP/1.1 408") :].partition(b"\r\n\r\n")
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "request_timeout")
    assert f"within {ARRIVAL:g} seconds" in error["message"]


def test_silent_connections_time_out(answers: dict[str, bytes]) -> None:
    """Browsers open connections in advance. Without a request there is no response."""
    assert answers["nothing"] == b""


@pytest.mark.parametrize("name", ["body", "body that stops"])
def test_slow_bodies_time_out(answers: dict[str, bytes], name: str) -> None:
    answer = answers[name]
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"] == "the body did not arrive in time"


def test_a_slow_body_after_its_response_times_out(answers: dict[str, bytes]) -> None:
    answer = answers["body after its response"]
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose responses take longer than the arrival timeout."""
    slow_down(monkeypatch, ARRIVAL / 10)


LONG = {"model": "language", "prompt": "to be", "max_tokens": 12, "temperature": 0}


@pytest.mark.usefixtures("slow")
def test_no_timeout_while_a_response_is_produced(impatient: tuple[str, int]) -> None:
    """Also while a complete request is pipelined, followed by one that never ends."""
    answers: list[bytes] = []
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(socket.create_connection(impatient, timeout=PATIENCE)) for _ in range(2)]
        both = [post_bytes("/v1/completions", {**LONG, "stream": stream}) for stream in (False, True)]
        for connection, request in zip(connections, both, strict=True):
            connection.sendall(request)
        time.sleep(ARRIVAL / 4)
        for connection, request in zip(connections, both, strict=True):
            connection.sendall(request + HEALTH + b"X-Long: ")
        answers += map(receive_all, connections)
    for answer in answers:
        assert answer.count(b"HTTP/1.1 200") == 2
        assert answer.count(b'"finish_reason":"length"') == 2
        assert answer.count(b"HTTP/1.1 408") <= 1
        assert answer.rfind(b'"finish_reason"') < answer.find(b"HTTP/1.1 408") or b"HTTP/1.1 408" not in answer


def test_a_connection_may_idle_between_requests(impatient: tuple[str, int]) -> None:
    with socket.create_connection(impatient, timeout=PATIENCE) as connection:
        for wait in (1.5 * ARRIVAL, 0):  # uvicorn's keep-alive timeout is five seconds
            connection.sendall(HEALTH + b"\r\n")
            assert read_status(connection) == 200
            time.sleep(wait)


def test_unread_responses_end_the_connection(impatient: tuple[str, int], caplog: pytest.LogCaptureFixture) -> None:
    """The responses exceed all buffers on the way. As the client does not read, it notices the end by writing."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        connection.settimeout(PATIENCE)
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
    with socket.create_connection(impatient, timeout=PATIENCE) as connection:
        connection.sendall((HEALTH + b"\r\n") * MAX_PIPELINED + last)
        assert receive_all(connection).count(b"HTTP/1.1 200") == MAX_PIPELINED + 1
    with socket.create_connection(impatient, timeout=PATIENCE) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n\r\n" * 10 * MAX_PIPELINED)
        answer = receive_all(connection)
    assert b"HTTP/1.1 400" in answer
    assert answer.endswith(b"more than 128 requests at once")
