"""Full queues, deadlines, disconnects, slow readers, and the shutdown of a server."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from serve_folders import language_model, running, slow_down
from serve_process import process

from allyouneed.serve.backend import Backend
from waiting import PATIENCE, until

pytestmark = pytest.mark.no_shapes

# Greedy: this random model then generates until its limit.
LONG = {"model": "language", "prompt": "to be", "max_tokens": 1024, "temperature": 0}


def running_rows(backend: Backend) -> int:
    return backend.engines["language"].decode_workers.rows()


def send(url: str, body: dict[str, Any], size: int | None = None) -> socket.socket:
    """Send a request and return its connection without reading the response."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.settimeout(PATIENCE)
    if size is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    connection.connect((host, int(port)))
    content = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with slow steps, like those of a large one."""
    slow_down(monkeypatch, 0.01)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("stream", [False, True])
def test_rows_of_disconnected_clients_leave_the_batch(folders: list[Path], stream: bool) -> None:
    with running(folders[3:4]) as (url, backend):
        one, two = (send(url, {**LONG, "stream": stream}) for _ in range(2))
        until(lambda: running_rows(backend) == 2)
        one.close()
        until(lambda: running_rows(backend) == 1)
        two.close()
        until(lambda: running_rows(backend) == 0 and backend.active == 0)


@pytest.mark.usefixtures("slow")
def test_rows_are_divided_among_all_decode_workers(folders: list[Path]) -> None:
    with running(folders[3:4], batch=7) as (url, backend):
        workers = backend.engines["language"].decode_workers.workers
        waiting = [send(url, {**LONG, "n": 2})]
        until(lambda: [len(worker.owner) for worker in workers] == [1, 1])
        waiting += [send(url, {**LONG, "n": 3}) for _ in range(2)]
        until(lambda: [len(worker.owner) for worker in workers] == [4, 3])
        waiting[0].close()
        until(lambda: running_rows(backend) == 6 and not len(backend.engines["language"].queue))
        for connection in waiting[1:]:
            connection.close()
        until(lambda: running_rows(backend) == 0)


@pytest.mark.usefixtures("slow")
def test_a_full_queue_refuses_at_once_with_retry_after(folders: list[Path]) -> None:
    with running(folders[3:4], batch=1, queue=2) as (url, backend):
        waiting = [send(url, LONG)]
        until(lambda: running_rows(backend) == 1)
        waiting += [send(url, LONG) for _ in range(2)]
        until(lambda: len(backend.engines["language"].queue) == 2)
        for stream in (False, True):
            found = httpx.post(f"{url}/v1/completions", json={**LONG, "stream": stream})
            assert found.status_code == 429
            assert found.json()["error"]["code"] == "queue_full"
            assert int(found.headers["retry-after"]) >= 1
        assert httpx.get(f"{url}/health").status_code == 200
        assert len(backend.engines["language"].queue) == 2  # refused long before the queued requests are served
        for connection in waiting:
            connection.close()
        until(lambda: backend.active == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_deadlines(folders: list[Path], monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """A stream reports it in an event, unless the first token was late: then, on a busy machine, with more time."""
    for deadline in (0.5, 5.0, 50.0):
        with monkeypatch.context() as patched, running(folders[3:4], deadline=deadline) as (url, backend):
            slow_down(patched, deadline / 50)
            body, headers = {**LONG, "stream": stream}, {"X-Request-Id": "mine"}
            found = httpx.post(f"{url}/v1/completions", json=body, headers=headers)
            until(lambda backend=backend: running_rows(backend) == 0)
        if found.status_code == 200 or not stream:
            break
    if stream:
        events = [line.removeprefix("data: ") for line in found.text.split("\n\n") if line]
        assert (found.status_code, events[-1]) == (200, "[DONE]")
        error = json.loads(events[-2])["error"]
    else:
        assert (found.status_code, "retry-after" in found.headers) == (503, True)
        error = found.json()["error"]
    assert (error["code"], error["request_id"]) == ("deadline_exceeded", "mine")


def test_a_failing_row_does_not_affect_its_batch(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A model may fail on a row in the middle of decoding."""
    from allyouneed.errors import DataError
    from allyouneed.models.decoder import Decoder

    advance = Decoder.advance

    def fails(self: Decoder, token_B: Any, state: Any) -> Any:
        time.sleep(0.005)
        longest = state.seen if isinstance(state.seen, int) else int(state.seen.max())
        if longest >= 30:
            raise DataError("positions end at 30")
        return advance(self, token_B, state)

    monkeypatch.setattr(Decoder, "advance", fails)
    with running(folders[3:4]) as (url, _):
        found: dict[int, httpx.Response] = {}

        def post(length: int) -> None:
            found[length] = httpx.post(f"{url}/v1/completions", json={**LONG, "max_tokens": length})

        threads = [threading.Thread(target=post, args=(length,)) for length in (10, 20, 100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {length: one.status_code for length, one in found.items()} == {10: 200, 20: 200, 100: 400}
    assert "positions end at 30" in found[100].json()["error"]["message"]


def test_a_completion_ends_at_the_last_position_of_a_model(tmp_path: Path) -> None:
    folder = language_model(tmp_path, kind="bytes", positions={"type": "learned", "max_length": 64})
    with running([folder]) as (url, _):
        for stream in (False, True):
            body = {**LONG, "max_tokens": 100, "stream": stream, "stream_options": None}
            found = httpx.post(f"{url}/v1/completions", json=body)
            assert found.status_code == 200
            assert '"finish_reason":"length"' in found.text
            assert '"error"' not in found.text
        usage = httpx.post(f"{url}/v1/completions", json={**LONG, "max_tokens": 100}).json()["usage"]
        assert usage["prompt_tokens"] + usage["completion_tokens"] == 64  # the last token replaces BOS in the count
        refused = httpx.post(f"{url}/v1/completions", json={**LONG, "prompt": "a" * 64})
        assert refused.status_code == 400
        assert "positions end at 64" in refused.json()["error"]["message"]
        shown = httpx.post(f"{url}/attention", json={"model": "language", "text": "a" * 60})
        assert shown.status_code == 200, shown.text


def test_slow_readers_do_not_delay_others(folders: list[Path]) -> None:
    with running(folders[3:4]) as (url, backend):
        body = {**LONG, "max_tokens": 150, "stream": True, "logprobs": 5, "n": 4}
        idle = [send(url, body, size=2048) for _ in range(3)]
        until(lambda: backend.active == 3)
        assert httpx.post(f"{url}/v1/completions", json={**LONG, "max_tokens": 5}).status_code == 200
        until(lambda: running_rows(backend) == 0)  # decoded to the end, although nothing was read
        whole = b""
        while piece := idle[0].recv(1 << 16):
            whole += piece
            if b"[DONE]" in whole:
                break
        assert b"[DONE]" in whole
        for connection in idle:
            connection.close()
        until(lambda: backend.active == 0)


def test_an_engine_survives_a_bug(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from allyouneed.models.decoder import Decoder

    with running(folders[3:4]) as (url, _):
        with monkeypatch.context() as patched:
            patched.setattr(Decoder, "advance", lambda *_: 1 / 0)
            patched.setattr("allyouneed.serve.worker.log.error", lambda *_, **__: None)
            found = httpx.post(f"{url}/v1/completions", json=LONG)
            assert (found.status_code, found.json()["error"]["message"]) == (500, "internal error")
        assert httpx.post(f"{url}/v1/completions", json={**LONG, "max_tokens": 3}).status_code == 200


def test_sigterm_lets_running_requests_finish(folders: list[Path]) -> None:
    limits = ("--limit", "drain=300", "--limit", "deadline=300")
    with process(str(folders[3]), f"other={folders[0]}", *limits) as (server, host, port):
        stop_gracefully(server, host, port)


def test_a_second_signal_stops_the_server_at_once_and_quietly(folders: list[Path]) -> None:
    with process(str(folders[3]), "--limit", "max_tokens=1000000") as (server, host, port):
        url = f"http://{host}:{port}"
        running = [send(url, {**LONG, "max_tokens": 1_000_000, "stream": stream}) for stream in (False, True)]
        running[1].recv(100)  # streaming has started
        server.send_signal(signal.SIGINT)
        until(lambda: httpx.get(f"{url}/health").status_code == 503)
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=PATIENCE) == 0
        assert server.communicate() == ("", "")
        for connection in running:
            connection.close()


SLOW_SEARCH = """
import time
from allyouneed.cli import main
from allyouneed.serve.batch_worker import BatchWorker
BatchWorker.work = lambda self: print("searching", flush=True) or time.sleep(3600)
main()
"""


def test_a_second_signal_does_not_wait_for_a_search(folders: list[Path]) -> None:
    arguments = ["serve", str(folders[0]), "--port", "0", "--access-log", "none", "--limit", "drain=0.1"]
    command = [sys.executable, "-c", SLOW_SEARCH, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().partition("(")[0].split()[-1]
            body = {"q": "one", "source": "en", "target": "de"}
            with ThreadPoolExecutor(1) as pool:
                pool.submit(httpx.post, f"{url}/translate", json=body)
                try:
                    assert server.stdout.readline() == "searching\n"
                    server.send_signal(signal.SIGTERM)
                    until(lambda: httpx.get(f"{url}/health").status_code == 503)
                    time.sleep(0.5)  # longer than the drain
                    server.send_signal(signal.SIGTERM)
                    assert server.wait(timeout=60) == 0  # a search of an hour, against a few steps of the loop
                finally:
                    server.kill()  # ends the request, for which the pool waits
            assert server.communicate() == ("", "")
        finally:
            server.kill()


def stop_gracefully(server: subprocess.Popen[str], host: str, port: int) -> None:
    statuses: Counter[str] = Counter()
    refused_others = threading.Event()  # until then nothing is read, so that decoding pauses and no stream ends
    started: list[int] = []
    last_lines: list[str] = []

    def stream() -> None:
        connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)
        body = json.dumps({**LONG, "n": 8, "seed": 1, "stream": True})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        started.append(answer.status)
        refused_others.wait(PATIENCE)
        text = answer.read().decode()
        connection.close()
        statuses[f"{answer.status}"] += 1
        last_lines.append(text.rstrip().rpartition("\n")[2])

    threads = [threading.Thread(target=stream) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(started) == 3)
    server.send_signal(signal.SIGTERM)
    late = http.client.HTTPConnection(host, port, timeout=PATIENCE)
    status, body = 200, b"{}"
    while status == 200:  # until the signal has arrived
        late.request("GET", "/health")
        answer = late.getresponse()
        status, body = answer.status, answer.read()
    assert (status, json.loads(body)["status"]) == (503, "draining")
    late.request("GET", "/v1/models")
    refused = late.getresponse()
    assert (refused.status, refused.getheader("retry-after")) == (503, "5")
    refused.read()
    late.close()
    refused_others.set()
    for thread in threads:
        thread.join()
    assert server.wait(timeout=PATIENCE) == 0
    assert statuses == {"200": 3}
    assert last_lines == ["data: [DONE]"] * 3
    assert server.communicate() == ("", "")
