"""Clients take turns: in the batch, in the queue, and in searches."""

import asyncio
import json
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from serve_folders import running
from test_serve_fairness import Harness, with_harness

from allyouneed.config import parse
from allyouneed.decode.running_batch import Row
from allyouneed.decode.sample import SampleConfig, uniforms
from allyouneed.models.decoder import Decoder
from allyouneed.serve import ServeConfig, create_app, open_models, tokens
from allyouneed.serve.backend import Backend
from allyouneed.serve.clients import CURRENT_CLIENT
from allyouneed.serve.errors import Refusal
from allyouneed.serve.models import Served
from allyouneed.serve.server import Server, uvicorn_config
from allyouneed.serve.worker import PendingRequest, RequestQueue
from waiting import PATIENCE, until

pytestmark = pytest.mark.no_shapes

# Greedy: this random model then generates until its limit.
LONG: dict[str, Any] = {
    "model": "language",
    "prompt": [f"to be {number}" for number in range(32)],
    "n": 8,
    "temperature": 0,
}
SHORT = {"model": "language", "prompt": "to be", "max_tokens": 2, "temperature": 0}


def post_from(address: str, url: str, body: dict[str, Any], path: str = "/v1/completions") -> httpx.Response:
    """Send a request from one of the loopback addresses: each is a client."""
    with httpx.Client(transport=httpx.HTTPTransport(local_address=address)) as client:
        return client.post(f"{url}{path}", json=body)


@contextmanager
def posting(
    address: str, url: str, body: dict[str, Any], path: str = "/v1/completions"
) -> Iterator[list[httpx.Response]]:
    """Send a request in another thread."""
    found: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: found.append(post_from(address, url, body, path)))
    thread.start()
    yield found
    thread.join()


def running_clients(backend: Backend) -> list[str]:
    workers = backend.engines["language"].decode_workers.workers
    return [request.client for worker in workers for request in list(worker.owner.values())]


class Steps:
    """The steps of a model. They wait while `go` is not set."""

    def __init__(self) -> None:
        self.count, self.go = 0, threading.Event()
        self.watch: Callable[[], None] = lambda: None  # called before every step
        self.go.set()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    found, advance = Steps(), Decoder.advance

    def counted(self: Decoder, token_B: Any, state: Any) -> Any:
        assert found.go.wait(PATIENCE)
        found.count += 1
        found.watch()
        return advance(self, token_B, state)

    monkeypatch.setattr(Decoder, "advance", counted)
    return found


def test_a_short_request_joins_a_full_batch(folders: list[Path], steps: Steps) -> None:
    """It waits for a few steps of both workers, not for the rows of the other client. All texts are as if alone."""
    body = {**LONG, "max_tokens": 100}
    with running(folders[3:4]) as (url, backend):
        queue = backend.engines["language"].queue
        wanted = post_from("127.0.0.2", url, SHORT).json()["choices"][0]["text"]
        alone = post_from("127.0.0.1", url, {**body, "n": 1}).json()["choices"]
        waits: list[bool] = []
        steps.watch = lambda: waits.append("127.0.0.2" in [*running_clients(backend), *queue.rows])
        with posting("127.0.0.1", url, body) as greedy:
            until(lambda: running_clients(backend).count("127.0.0.1") == 64)
            steps.go.clear()
            with posting("127.0.0.2", url, SHORT) as short:
                until(lambda: "127.0.0.2" in queue.rows)
                steps.go.set()
        assert short[0].json()["choices"][0]["text"] == wanted
        assert sum(waits) < 60  # steps from the arrival to the end of the short request, of at least 800
        texts = [choice["text"] for choice in greedy[0].json()["choices"]]
        assert texts == [choice["text"] for choice in alone for _ in range(8)]


def test_clients_share_the_batch_evenly(folders: list[Path], steps: Steps) -> None:
    body = {**LONG, "prompt": LONG["prompt"][:6], "max_tokens": 40}
    with running(folders[3:4], batch=12) as (url, backend):
        shares: list[Counter[str]] = []
        with posting("127.0.0.1", url, body) as first:
            until(lambda: running_clients(backend).count("127.0.0.1") == 12)
            steps.go.clear()
            with posting("127.0.0.2", url, {**body, "n": 2}) as second:
                until(lambda: len(backend.engines["language"].queue.rows) == 2)
                steps.watch = lambda: shares.append(Counter(running_clients(backend)))
                steps.go.set()
    assert Counter({"127.0.0.1": 6, "127.0.0.2": 6}) in shares
    texts = [choice["text"] for choice in second[0].json()["choices"][::2]]
    assert [choice["text"] for choice in first[0].json()["choices"]] == [text for text in texts for _ in range(8)]


def test_a_client_fills_only_its_part_of_the_queue(folders: list[Path], steps: Steps) -> None:
    body = {**SHORT, "max_tokens": 20}
    with running(folders[3:4], batch=1, queue=4, client_queue=2) as (url, backend):
        queue = backend.engines["language"].queue
        steps.go.clear()
        with posting("127.0.0.1", url, body):
            until(lambda: len(running_clients(backend)) == 1 and len(queue) == 0)
            with posting("127.0.0.1", url, {**body, "n": 2}):
                until(lambda: len(queue) == 2)
                refused = post_from("127.0.0.1", url, body)
                assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
                assert "your queue is full: 2 of 2" in refused.json()["error"]["message"]
                steps.go.set()
                assert post_from("127.0.0.2", url, SHORT).status_code == 200
        larger = post_from("127.0.0.2", url, {**SHORT, "n": 3})
        assert (larger.status_code, larger.json()["error"]["code"]) == (400, "larger_than_queue")
        assert "--limit client_queue" in larger.json()["error"]["message"]


def test_a_full_queue_accepts_the_equal_share_of_a_client(folders: list[Path], steps: Steps) -> None:
    with running(folders[3:4], batch=1, queue=4) as (url, backend):
        queue = backend.engines["language"].queue
        steps.go.clear()
        with posting("127.0.0.1", url, {**SHORT, "n": 4}):
            until(lambda: len(queue) == 3 and len(running_clients(backend)) == 1)
            assert post_from("127.0.0.2", url, {**SHORT, "n": 3}).status_code == 429
            with posting("127.0.0.2", url, {**SHORT, "n": 2}) as found:
                until(lambda: len(queue) == 5)
                steps.go.set()
        assert found[0].status_code == 200


class Tokenized:
    """The texts that `/tokenize` has processed, in order. It waits while `go` is not set."""

    def __init__(self) -> None:
        self.texts, self.go = list[str](), threading.Event()


@pytest.fixture
def tokenized(monkeypatch: pytest.MonkeyPatch) -> Tokenized:
    found, tokenize = Tokenized(), tokens._tokenize

    def recorded(served: Served, texts: Sequence[str], side: tokens.Side) -> list[tokens.TokenizedText]:
        assert found.go.wait(300)
        found.texts.append(texts[0])
        return tokenize(served, texts, side)

    monkeypatch.setattr(tokens, "_tokenize", recorded)
    return found


def test_tokenizing_takes_turns_by_client(folders: list[Path], tmp_path: Path, tokenized: Tokenized) -> None:
    """A small request waits for one large request in each thread. The operator's requests do not wait at all."""
    large = {"model": "language", "text": "large " * 3000}
    small = {"model": "language", "text": "small"}
    with running(folders[3:4], threads=2) as (url, backend), ExitStack() as sent:
        backend.share_metrics(tmp_path, 1)
        found = [sent.enter_context(posting("127.0.0.1", url, large, "/tokenize")) for _ in range(30)]
        until(lambda: backend.texts.waiting == 28)
        found += [sent.enter_context(posting("127.0.0.2", url, small, "/tokenize"))]
        until(lambda: backend.texts.waiting == 29)
        assert httpx.get(f"{url}/metrics").status_code == 200
        tokenized.go.set()
    assert tokenized.texts.index("small") <= 3
    assert [one.json()["texts"][0]["count"] > 0 for [one] in found] == [True] * 31


@pytest.mark.parametrize(("drain", "status"), [(300, b"200 OK"), (0.1, b"503 Service Unavailable")])
def test_texts_that_wait_at_shutdown_are_processed_or_refused(
    folders: list[Path], tokenized: Tokenized, drain: float, status: bytes
) -> None:
    config = parse(ServeConfig, {"port": 0, "threads": 1, "drain": drain})
    app = create_app(config, open_models([str(folders[3])]))
    server, backend = Server(uvicorn_config(app, config), app.state.backend), app.state.backend
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as sent:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        until(lambda: server.started)
        connections = []
        for number in range(3):
            connections.append(sent.enter_context(socket.create_connection(listener.getsockname(), timeout=300)))
            connections[-1].sendall(raw_post("/tokenize", {"model": "language", "text": "to be"}))
            until(lambda waiting=number: backend.active == waiting + 1 and backend.texts.waiting == waiting)  # type: ignore[misc]
        server.handle_exit(signal.SIGTERM, None)
        if status == b"200 OK":
            tokenized.go.set()
        found = [connection.recv(100).partition(b"\r\n")[0] for connection in connections[1:]]
        tokenized.go.set()
        thread.join()
    assert found == [b"HTTP/1.1 " + status] * 2
    assert len(tokenized.texts) == (3 if status == b"200 OK" else 1)


def raw_post(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n{content}".encode()


def submit(harness: Harness, client: str, items: str, key: str = "search") -> PendingRequest:
    token = CURRENT_CLIENT.set(client)
    try:
        return harness.submit(items, key)
    finally:
        CURRENT_CLIENT.reset(token)


def test_searches_take_turns_by_client() -> None:
    """The second client waits for one batch, although the first one has sent three requests before."""

    def scenario(harness: Harness) -> None:
        for items in ("abcd", "efgh", "ijkl"):
            submit(harness, "first", items)
        submit(harness, "second", "uvwxyz")
        assert [harness.batch() for _ in range(5)] == ["abcd", "uvwx", "efgh", "yz", "ijkl"]
        assert not harness.queue.items

    with_harness(scenario)


def test_small_searches_of_all_clients_share_a_batch_evenly() -> None:
    def scenario(harness: Harness) -> None:
        for item in "abcdef":
            submit(harness, "first", item)
        for item in "xyz":
            submit(harness, "second", item)
        assert [harness.batch() for _ in range(3)] == ["axby", "zcde", "f"]

    with_harness(scenario)


def test_rows_that_return_to_a_closed_queue_are_refused() -> None:
    async def close_during_a_step() -> None:
        queue, row = RequestQueue(), Row([5], None, SampleConfig(), uniforms(1, 0, 0))
        request = PendingRequest([row])
        with queue.changed:
            queue.add(request)
            queue.take(request)
            assert queue.close() == set()
            queue.put_back([(request, row)])
        await asyncio.wait_for(request.has_events.wait(), PATIENCE)
        [refusal] = request.events
        assert isinstance(refusal, Refusal)
        assert (refusal.status, len(queue)) == (503, 0)

    asyncio.run(close_during_a_step())
