"""Requests that come byte by byte, or not at all: a connection is kept for so long and no longer."""

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

from allyouneed.serve.protocol import AHEAD, Protocol

pytestmark = pytest.mark.no_shapes

ARRIVAL = 0.5
HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n"


@pytest.fixture(scope="module")
def hurried(folders: list[Path]) -> Iterator[tuple[str, int]]:
    """The address of a server that waits for half a second."""
    with running(folders[3:4], arrival=ARRIVAL) as (url, _):
        host, port = url.removeprefix("http://").split(":")
        yield host, int(port)


def posted(path: str, body: dict[str, Any], *, more: int = 0) -> bytes:
    """A request; `more`: bytes that it promises and does not send."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content) + more}\r\n\r\n".encode() + content


def heard(connection: socket.socket) -> bytes:
    """All that comes until the other side ends the connection; if it never does, this fails after a while."""
    whole = b""
    with contextlib.suppress(ConnectionError):
        while more := connection.recv(1 << 16):
            whole += more
    return whole


@contextlib.contextmanager
def trickling(connection: socket.socket, piece: bytes = b"a") -> Iterator[None]:
    """A little of something every now and then, from another thread."""
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
    ids=["line", "header", "headers", "empty lines", "header of the next"],
)
def test_headers_that_trickle_in(hurried: tuple[str, int], begin: bytes, piece: bytes, before: int) -> None:
    with socket.create_connection(hurried, timeout=20) as connection:
        connection.sendall(begin)
        with trickling(connection, piece):
            answer = heard(connection)
    assert answer.count(b"HTTP/1.1 200") == before
    head, _, body = answer[answer.index(b"HTTP/1.1 408") :].partition(b"\r\n\r\n")
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "request_timeout")
    assert "within 0.5 seconds" in error["message"]


def test_a_connection_on_which_nothing_comes(hurried: tuple[str, int]) -> None:
    """It may be one that a browser opened in advance: nobody asked, so nothing is answered."""
    with socket.create_connection(hurried, timeout=20) as connection:
        assert heard(connection) == b""


def test_a_body_that_trickles_in(hurried: tuple[str, int]) -> None:
    with socket.create_connection(hurried, timeout=20) as connection:
        connection.sendall(posted("/v1/completions", {}, more=10_000))
        with trickling(connection):
            answer = heard(connection)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"] == "the body did not come in time"


def test_a_body_that_trickles_in_after_its_answer(hurried: tuple[str, int]) -> None:
    with socket.create_connection(hurried, timeout=20) as connection:
        connection.sendall(posted("/nothing", {}, more=10_000))
        with trickling(connection):
            answer = heard(connection)
    assert answer.startswith(b"HTTP/1.1 404")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose answer takes much longer than a request may."""
    slow_down(monkeypatch, ARRIVAL / 10)


LONG = {"model": "speaker", "prompt": "to be", "max_tokens": 40, "temperature": 0}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("stream", [False, True])
def test_answers_take_their_time(hurried: tuple[str, int], stream: bool) -> None:
    """Also where the next request waits already, a body and all, and one behind it never comes to its end."""
    request = posted("/v1/completions", {**LONG, "stream": stream})
    with socket.create_connection(hurried, timeout=60) as connection:
        connection.sendall(request)
        time.sleep(ARRIVAL / 2)
        connection.sendall(request + HEALTH + b"X-Long: ")
        answer = heard(connection)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.count(b'"finish_reason":"length"') == 2
    assert answer.count(b"HTTP/1.1 408") <= 1
    assert answer.rfind(b'"finish_reason"') < answer.find(b"HTTP/1.1 408") or b"HTTP/1.1 408" not in answer


def test_a_connection_may_rest_between_requests(hurried: tuple[str, int]) -> None:
    with socket.create_connection(hurried, timeout=20) as connection:
        for _ in range(2):
            connection.sendall(HEALTH + b"\r\n")
            assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
            time.sleep(3 * ARRIVAL)  # uvicorn would end it after five seconds


def test_answers_that_nobody_takes(hurried: tuple[str, int], caplog: pytest.LogCaptureFixture) -> None:
    """They are more than all buffers on the way hold. Nobody reads either that the connection ends: writing tells."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        connection.settimeout(60)
        connection.connect(hurried)
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" * (AHEAD - 1))

        def write() -> None:
            for _ in range(600):
                time.sleep(ARRIVAL / 5)
                connection.send(b"\r\n")

        with pytest.raises(ConnectionError):
            write()
    assert not caplog.records


@pytest.mark.parametrize("closing", [False, True])
def test_answers_may_be_taken_bit_by_bit(closing: bool) -> None:
    """Only a reader who took nothing between two looks is given up, also while the connection waits for its end."""
    transport, loop = MagicMock(), MagicMock()
    transport.get_extra_info.return_value = None
    transport.is_closing.return_value = closing
    config = uvicorn.Config(MagicMock(), lifespan="off", log_config=None)
    protocol = Protocol(config, ServerState(), {}, loop, arrival=30.0)
    protocol.connection_made(transport)

    def look(waits: int) -> bool:
        """Whether the connection was ended when so many bytes waited."""
        transport.get_write_buffer_size.return_value = waits
        (seconds, act), _ = loop.call_later.call_args
        assert seconds == 30
        act()
        return bool(transport.abort.called)

    if not closing:
        assert not any(look(99) for _ in range(3))  # more may be written yet
        protocol.pause_writing()
    assert not any(look(waits) for waits in (99, 98, 97, 0, 0, 97))
    if not closing:
        protocol.resume_writing()  # all was taken, and as much was written
        protocol.pause_writing()
        assert not look(97)
    assert look(97)


def test_requests_that_wait_for_the_answer_to_another(hurried: tuple[str, int]) -> None:
    last = HEALTH + b"Connection: close\r\n\r\n"
    with socket.create_connection(hurried, timeout=60) as connection:
        connection.sendall((HEALTH + b"\r\n") * AHEAD + last)
        assert heard(connection).count(b"HTTP/1.1 200") == AHEAD + 1
    with socket.create_connection(hurried, timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n\r\n" * 10 * AHEAD)
        answer = heard(connection)
    assert b"HTTP/1.1 400" in answer
    assert answer.endswith(b"more than 128 requests at once")
