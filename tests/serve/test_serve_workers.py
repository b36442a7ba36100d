"""`serve --workers`: several processes that share a port."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import httpx2 as httpx
import pytest
from serve_process import process
from test_serve_lifecycle import LONG
from test_serve_reload import Log, models_of

from allyouneed.serve.app import create_app
from allyouneed.serve.metrics import Metrics
from allyouneed.serve.server import Server, WorkerRole, uvicorn_config
from allyouneed.serve.setup import Source
from allyouneed.serve.shared_metrics import SharedMetrics
from allyouneed.serve.worker_process import READY
from waiting import PATIENCE, until

pytestmark = pytest.mark.no_shapes
SHORT = {"model": "language", "prompt": "to be or", "max_tokens": 5, "temperature": 0}


@contextmanager
def two_workers(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    with process(*arguments, "--workers", "2") as (server, host, port):
        url = f"http://{host}:{port}"
        until(lambda: workers_in_metrics(url) == {"1", "2"})
        yield server, url


def workers_in_metrics(url: str) -> set[str]:
    text = httpx.get(f"{url}/metrics").text
    return set(re.findall(r'allyouneed_connections{worker="(\d)"}', text))


def children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def total(url: str, name: str) -> float:
    """Return the sum of a metric over all workers."""
    text = httpx.get(f"{url}/metrics").text
    return sum(float(value) for value in re.findall(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE))


def test_workers_share_a_port_and_sum_their_metrics(folders: list[Path]) -> None:
    with two_workers(str(folders[3])) as (server, url):
        answers = {httpx.post(f"{url}/v1/completions", json=SHORT).json()["choices"][0]["text"] for _ in range(20)}
        assert len(answers) == 1
        until(lambda: total(url, "allyouneed_first_token_seconds_count") == 20)
        assert httpx.get(f"{url}/metrics").text.count("# TYPE allyouneed_connections gauge") == 1
        pids = children(server.pid)
        assert len(pids) == 2
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=PATIENCE) == 0
        assert server.communicate() == ("", "")
        assert not any(map(runs, pids))


def test_a_worker_that_crashes_starts_again(folders: list[Path]) -> None:
    with two_workers(str(folders[3])) as (server, url):
        log, pids = Log(server), children(server.pid)
        os.kill(pids[0], signal.SIGKILL)
        log.wait("ended with status -9; it starts again in 1 seconds")
        until(lambda: len(children(server.pid)) == 2 and pids[0] not in children(server.pid))
        until(lambda: workers_in_metrics(url) == {"1", "2"})
        # A worker that ends by itself, after it was drained, starts again at once.
        os.kill(pids[1], signal.SIGTERM)
        log.wait("ended with status 0; it starts again in 0 seconds")
        assert httpx.post(f"{url}/v1/completions", json=SHORT).status_code == 200
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=PATIENCE) == 0


def test_requests_finish_when_workers_drain(folders: list[Path]) -> None:
    options = ("--limit", "drain=300", "--limit", "deadline=300")
    with (
        two_workers(str(folders[3]), *options) as (server, url),
        httpx.stream("POST", f"{url}/v1/completions", json={**LONG, "stream": True}) as response,
    ):
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        for _ in range(2):  # a service manager sends it to every process
            for one in children(server.pid):
                os.kill(one, signal.SIGTERM)
        server.send_signal(signal.SIGTERM)
        assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.wait(timeout=PATIENCE) == 0


def test_sighup_reaches_all_workers(folders: list[Path], tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("old\n")
    with process(str(folders[3]), "--keys", str(keys), "--workers", "2") as (server, host, port):
        url, log = f"http://{host}:{port}", Log(server)
        headers = {"Authorization": "Bearer old"}
        until(lambda: 'worker="2"' in httpx.get(f"{url}/metrics", headers=headers).text)
        keys.write_text("new\n")
        server.send_signal(signal.SIGHUP)
        log.wait("1 keys; models: unchanged", 2)
        for _ in range(10):
            assert models_of(url, "new") == ["language"]


def test_a_worker_that_starts_does_not_block_the_others(folders: list[Path], tmp_path: Path) -> None:
    """The workers share the listening socket, and with it the flag that `accept` does not wait."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)  # as another worker has left it
        number = listener.fileno()
        source = asdict(Source(models=[str(folders[3])]))
        order = json.dumps({"listener": number, "worker": 1, "metrics": str(tmp_path), "source": source})
        command = [sys.executable, "-m", "allyouneed.serve.worker_process"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[number]) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(order.encode() + b"\n")
            worker.stdin.flush()
            with ThreadPoolExecutor(1) as pool:
                line = pool.submit(worker.stdout.readline)
                while not line.done():
                    assert not os.get_blocking(number)
                    time.sleep(0.0002)  # the flag would be cleared for a few milliseconds
            assert line.result() == READY
            worker.stdin.close()


def has_torch(process: int) -> bool:
    """Return True if a process or one of its children has begun to import torch."""
    return any("libtorch" in Path(f"/proc/{one}/maps").read_text() for one in [process, *children(process)])


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_during_the_start_does_not_end_the_server(folders: list[Path], workers: int) -> None:
    command = [sys.executable, "-m", "allyouneed", "serve", str(folders[3]), "--port", "0", "--workers", str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            with ThreadPoolExecutor(1) as pool:
                line = pool.submit(server.stdout.readline)
                until(lambda: has_torch(server.pid))
                while not line.done():
                    server.send_signal(signal.SIGHUP)
                    time.sleep(0.05)
            url = line.result().partition("(")[0].split()[-1]
            assert httpx.get(f"{url}/ready").status_code == 200
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=PATIENCE) == 0
        finally:
            server.kill()


def test_metrics_may_be_read_and_written_at_once(tmp_path: Path) -> None:
    """The tick of a worker and each request for /metrics write the same file, in threads."""
    shared = SharedMetrics(Metrics().registry, tmp_path, 1)
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(shared.read) for _ in range(200)]:
            assert b'worker="1"' in done.result()


def test_metrics_of_a_worker_that_ends_are_left_out(tmp_path: Path) -> None:
    shared = SharedMetrics(Metrics().registry, tmp_path, 1)
    (tmp_path / "2.prom").symlink_to(tmp_path / "removed")  # listed, but gone when it is read
    assert b'worker="1"' in shared.read()


def test_a_worker_survives_metrics_that_cannot_be_written(folders: list[Path], tmp_path: Path) -> None:
    setup = Source(models=[str(folders[3])]).read()
    app = create_app(setup, {})
    role = WorkerRole(1, tmp_path / "nosuch", lambda: None)
    server = Server(uvicorn_config(app, setup), app.state.backend, role=role)
    assert asyncio.run(server.on_tick(0)) is False


def test_a_mistake_is_reported_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "allyouneed", "serve", str(tmp_path / "nosuch"), "--workers", "2", "--port", "0"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (2, "")
    assert re.fullmatch(r"error: \S+nosuch: no such folder\n", found.stderr)


def test_workers_end_with_their_supervisor(folders: list[Path]) -> None:
    with two_workers(str(folders[3])) as (server, _):
        pids = children(server.pid)
        server.kill()
        until(lambda: not any(map(runs, pids)))
