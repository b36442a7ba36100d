"""Readers that lag: decoding pauses, the text stays the same, and the event loop stays responsive."""

import asyncio
import gc
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from serve_folders import running

from allyouneed.serve.backend import Backend
from allyouneed.serve.worker import PendingRequest
from waiting import PATIENCE, until

pytestmark = pytest.mark.no_shapes

PROMPTS = [f"to be or not {number}" for number in range(32)]
HUGE = {"model": "language", "prompt": PROMPTS, "n": 8, "max_tokens": 1024, "logprobs": 20, "seed": 1, "stream": True}


def send_unread(url: str, body: dict[str, Any]) -> socket.socket:
    """Send a request and read nothing. A small buffer keeps the response in the server."""
    content = json.dumps(body).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
    connection.settimeout(PATIENCE)
    host, port = url.removeprefix("http://").split(":")
    connection.connect((host, int(port)))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


def waiting(backend: Backend) -> list[PendingRequest]:
    queue = backend.engines["language"].queue
    with queue.changed:
        return [request for part in queue.rows.values() for request in part]


def pause_of(backend: Backend) -> int:
    """Wait until decoding has paused for a second, and return the number of tokens so far."""

    def tokens() -> int:
        return sum(len(row.ids) for request in waiting(backend) for row in request.rows)

    def is_paused() -> bool:
        idle, requests = backend.engines["language"].decode_workers.rows() == 0, waiting(backend)
        return idle and bool(requests) and all(request.backlog.lags for request in requests)

    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        before = tokens()
        time.sleep(1)
        if is_paused() and tokens() == before:
            return before
    raise AssertionError("decoding has not paused")


@pytest.fixture
def longest_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """CPU seconds of the event loop between two samples. CPU time does not depend on the load of the machine."""
    samples: list[float] = []
    start = Backend.start

    async def watch() -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0.005)
            now = time.thread_time()
            samples.append(now - before)
            before = now

    def start_and_watch(self: Backend) -> None:
        start(self)
        self.watcher = asyncio.get_running_loop().create_task(watch())  # type: ignore[attr-defined]

    monkeypatch.setattr(Backend, "start", start_and_watch)
    gc.disable()  # the objects of this process are not those of a server
    yield samples
    gc.enable()


def test_decoding_pauses_while_a_stream_is_not_read(folders: list[Path], longest_run: list[float]) -> None:
    with running(folders[3:4], max_backlog=100_000) as (url, backend), send_unread(url, HUGE) as connection:
        generated = pause_of(backend)
        (request,) = waiting(backend)
        assert request.backlog.bytes < 100_000 + 3 * 64 * 128 * 21  # the limit, and a few steps of all rows
        assert httpx.get(f"{url}/health").status_code == 200
        while sum(len(row.ids) for row in request.rows) == generated:  # reading lets decoding continue
            assert connection.recv(1 << 16)
        assert pause_of(backend) > generated
        connection.close()
        until(lambda: backend.active == 0 and not len(backend.engines["language"].queue))
    assert max(longest_run) < 0.25


def test_unread_streams_do_not_fill_the_queue_of_others(folders: list[Path]) -> None:
    with running(folders[3:4], queue=256, max_backlog=100_000) as (url, backend), send_unread(url, HUGE):
        pause_of(backend)
        size = 256 - len(backend.engines["language"].queue) + 1  # more than the queue has left
        transport = httpx.HTTPTransport(local_address="127.0.0.2")  # another client
        with httpx.Client(transport=transport) as client:
            body = {"model": "language", "prompt": ["to"] * size, "max_tokens": 2}
            assert client.post(f"{url}/v1/completions", json=body).status_code == 200


def test_an_event_contains_all_tokens_that_are_ready(folders: list[Path]) -> None:
    with running(folders[3:4]) as (url, backend), send_unread(url, HUGE) as connection:
        pause_of(backend)
        received = b""
        while len(received) < 1 << 22:
            more = connection.recv(1 << 16)
            assert more
            received += more
    lines = [line for line in received.decode(errors="replace").splitlines() if line.startswith("data: {")]
    tokens = []
    for line in lines[:-1]:
        try:
            tokens.append(len(json.loads(line.removeprefix("data: "))["choices"][0]["logprobs"]["tokens"]))
        except ValueError:  # a chunk of the transfer ends here
            continue
    assert max(tokens) > 1


@pytest.mark.parametrize("settings", [{"max_backlog": 1}, {"max_backlog": 1, "batch": 2}], ids=str)
def test_pauses_do_not_change_the_text(folders: list[Path], url: str, settings: dict[str, int]) -> None:
    """With a backlog of one byte every token suspends its rows. Few of them keep their states in a small batch."""
    body = {**HUGE, "prompt": PROMPTS[:3], "n": 3, "max_tokens": 30, "logprobs": 2}
    wanted = choices_of(httpx.post(f"{url}/v1/completions", json=body).text)
    with running(folders[3:4], **settings) as (paused, _):
        found = choices_of(httpx.post(f"{paused}/v1/completions", json=body).text)
    assert found == wanted
    assert len(wanted) == 9


def choices_of(stream: str) -> dict[int, str]:
    """Return the texts of a stream."""
    texts: dict[int, str] = {}
    for line in stream.splitlines():
        if line.startswith("data: {"):
            (choice,) = json.loads(line.removeprefix("data: "))["choices"]
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


@pytest.mark.parametrize(
    "body",
    [
        {**HUGE, "stream": False, "n": 1, "max_tokens": 360, "temperature": 0},
        {**HUGE, "prompt": ["to be or not " * 100] * 15, "n": 1, "max_tokens": 0, "echo": True},
    ],
    ids=["one response", "echo"],
)
def test_long_responses_leave_time_for_others(
    folders: list[Path], longest_run: list[float], body: dict[str, Any]
) -> None:
    with running(folders[3:4]) as (url, _):
        found = httpx.post(f"{url}/v1/completions", json=body)
        assert found.status_code == 200
    assert max(longest_run) < 0.25


def test_a_large_response_must_be_streamed(folders: list[Path]) -> None:
    body = {**HUGE, "prompt": "to be", "n": 4, "temperature": 0, "max_tokens": 40}
    with running(folders[3:4], max_response=100_000) as (url, backend):
        found = httpx.post(f"{url}/v1/completions", json={**body, "stream": False})
        assert (found.status_code, found.json()["error"]["code"]) == (400, "response_too_large")
        assert "more than 100,000 bytes of tokens: stream it" in found.json()["error"]["message"]
        until(lambda: backend.engines["language"].decode_workers.rows() == 0)
        assert httpx.post(f"{url}/v1/completions", json=body).text.count('"finish_reason":"length"') == 4
