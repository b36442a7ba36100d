"""What operators read: request ids, the access log, readiness, versions and metrics."""

import json
import re
import signal
import socket
from pathlib import Path

import httpx2 as httpx
import pytest
from serve_folders import running
from serve_process import process
from test_serve_lifecycle import LONG, send

from allyouneed.serve.backend import Backend
from allyouneed.version import __version__
from waiting import PATIENCE, until

pytestmark = pytest.mark.no_shapes
SHORT = {"model": "language", "prompt": "to be or", "max_tokens": 5, "temperature": 0}


def test_every_response_has_a_request_id(url: str) -> None:
    given = httpx.get(f"{url}/health", headers={"X-Request-Id": "abc/123"})
    assert given.headers["x-request-id"] == "abc/123"
    for bad in ("two words", "x" * 129, ""):
        found = httpx.get(f"{url}/health", headers={"X-Request-Id": bad}).headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{16}", found)
    stream = httpx.post(f"{url}/v1/completions", json={**SHORT, "stream": True})
    assert stream.headers["x-request-id"]
    assert stream.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"model": "nosuch", "prompt": "a"}, 404),
        ("/v1/completions", {"model": "language"}, 400),
        ("/v1/completions", {"model": "language", "prompt": "a" * 2_000_000}, 413),
        ("/nosuch", {}, 404),
    ],
)
def test_errors_contain_the_request_id(url: str, path: str, body: dict[str, str], status: int) -> None:
    found = httpx.post(f"{url}{path}", json=body, headers={"X-Request-Id": "mine"})
    assert (found.status_code, found.headers["x-request-id"]) == (status, "mine")
    assert found.json()["error"]["request_id"] == "mine"


def test_libretranslate_errors_contain_the_request_id(url: str) -> None:
    found = httpx.post(f"{url}/translate", json={"q": "one"}, headers={"X-Request-Id": "mine"})
    assert (found.status_code, found.json()["request_id"]) == (400, "mine")
    assert isinstance(found.json()["error"], str)


def test_an_unexpected_exception_keeps_the_request_id(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allyouneed.serve.completions._card", lambda _: 1 / 0)
    found = httpx.get(f"{url}/v1/models", headers={"X-Request-Id": "mine"})
    assert (found.status_code, found.headers["x-request-id"]) == (500, "mine")
    assert found.json()["error"]["request_id"] == "mine"


def test_ready_and_version(server: tuple[str, Backend]) -> None:
    url, backend = server
    ready = httpx.get(f"{url}/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "models": list(backend.models)})
    assert httpx.get(f"{url}/version").json()["version"] == __version__
    try:
        backend.draining = True
        draining = httpx.get(f"{url}/ready")
        assert (draining.status_code, draining.json()["status"]) == (503, "draining")
    finally:
        backend.draining = False


def metric(url: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", httpx.get(f"{url}/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_metrics_of_requests_connections_process_and_build(url: str) -> None:
    def counts() -> list[float]:
        names = ("prompt_tokens_total", "first_token_seconds_count", "queue_seconds_count")
        return [metric(url, f'allyouneed_{name}{{model="language"}}') for name in names]

    before = counts()
    found = httpx.post(f"{url}/v1/completions", json=SHORT).json()
    tokens = found["usage"]["prompt_tokens"]
    until(lambda: counts() == [before[0] + tokens, before[1] + 1, before[2] + 1])
    text = httpx.get(f"{url}/metrics").text
    assert f'version="{__version__}"' in re.search("allyouneed_build_info{.*} 1.0", text)[0]  # type: ignore[index]
    for name in ("process_resident_memory_bytes", "process_open_fds", "python_info"):
        assert re.search(f"^{name}", text, re.MULTILINE)
    connections = metric(url, "allyouneed_connections")
    assert connections >= 1  # its own
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))):
        until(lambda: metric(url, "allyouneed_connections") >= connections + 1)
    until(lambda: metric(url, "allyouneed_connections") <= connections)


def test_the_access_log_as_json(folders: list[Path]) -> None:
    with process(str(folders[3]), str(folders[0]), "--access-log", "json") as (server, host, port):
        url = f"http://{host}:{port}"
        usage = httpx.post(f"{url}/v1/completions", json=SHORT, headers={"X-Request-Id": "one"}).json()["usage"]
        body = {"q": "one", "source": "en", "target": "de"}
        assert httpx.post(f"{url}/translate", json=body, headers={"X-Request-Id": "two"}).status_code == 200
        httpx.get(f"{url}/no%0Asuch", headers={"X-Request-Id": "three"})
        server.send_signal(signal.SIGTERM)
        _, log = server.communicate(timeout=PATIENCE)
    entries = {entry["request_id"]: entry for entry in map(json.loads, log.splitlines())}
    one, two, three = (entries[name] for name in ("one", "two", "three"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", one["time"])
    assert {name: one[name] for name in ("client", "method", "path", "model", "status")} == {
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/v1/completions",
        "model": "language",
        "status": 200,
    }
    assert (one["prompt_tokens"], one["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert 0 <= one["queue_seconds"] <= one["first_token_seconds"] <= one["total_seconds"]
    assert (two["model"], two["status"]) == ("numbers-de", 200)
    assert two["prompt_tokens"] > 0
    assert two["completion_tokens"] > 0
    assert (three["path"], three["status"], three["model"]) == ("/no%0Asuch", 404, None)


def test_the_access_log_as_text_counts_disconnects(folders: list[Path]) -> None:
    options = ("--access-log", "text", "--limit", "max_tokens=1000000")
    with process(str(folders[3]), *options) as (server, host, port):
        url = f"http://{host}:{port}"
        waiting = send(url, {**LONG, "max_tokens": 1_000_000})
        until(lambda: metric(url, 'allyouneed_running{model="language"}') == 1)
        waiting.close()
        until(lambda: metric(url, 'allyouneed_queue_seconds_count{model="language"}') == 1)
        server.send_signal(signal.SIGTERM)
        _, log = server.communicate(timeout=PATIENCE)
    line = r"^\S+Z [0-9a-f]{16} 127\.0\.0\.1 POST /v1/completions 499 model=language prompt=\d+ "
    assert re.search(line, log, re.MULTILINE)


def test_the_access_log_names_keys_by_a_hash(folders: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="allyouneed.access")
    with running(folders[3:4], keys=["secret-key"]) as (url, _):
        for key in ("secret-key", "wrong-key"):
            httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"})
        until(lambda: len(caplog.records) == 2)
    valid, wrong = (record.__dict__["entry"] for record in caplog.records)
    assert (valid["status"], valid["client"][:4], wrong["status"], wrong["client"]) == (200, "key:", 401, "127.0.0.1")
    assert "secret-key" not in caplog.text


def test_the_log_and_the_metrics_count_the_same_requests(folders: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    """Whatever answers: an endpoint, the gate, or the framework."""
    caplog.set_level("INFO", logger="allyouneed.access")
    with running(folders[3:4], keys=["secret"]) as (url, backend):
        httpx.get(f"{url}/health")
        assert httpx.head(f"{url}/health").content == b""
        httpx.get(f"{url}/v1/models")
        httpx.get(f"{url}/page/nosuch/file")
        httpx.get(f"{url}/health", headers={"Host": "elsewhere.example"})
        until(lambda: len(caplog.records) == 5)
        metrics = [*backend.metrics.requests.collect(), *backend.metrics.latency.collect()]
    entries = [record.__dict__["entry"] for record in caplog.records]
    assert [(entry["method"], entry["status"]) for entry in entries] == [
        ("GET", 200),
        ("HEAD", 200),
        ("GET", 401),
        ("GET", 404),
        ("GET", 400),
    ]
    samples = [sample for metric in metrics for sample in metric.samples]
    assert {
        tuple(sample.labels.values()): sample.value
        for sample in samples
        if sample.name.endswith(("_requests_total", "_seconds_count"))
    } == {
        ("/health", "200"): 2,
        ("other", "401"): 1,
        ("other", "404"): 1,
        ("other", "400"): 1,
        ("/health",): 2,
        ("other",): 3,
    }


def test_a_log_that_is_not_read_does_not_block_the_server(folders: list[Path]) -> None:
    """The pipe of stderr is never read, and the log exceeds its 64 KiB."""
    with process(str(folders[0]), "--access-log", "text") as (server, host, port):
        with httpx.Client(base_url=f"http://{host}:{port}") as client:
            for _ in range(60):
                client.get("/health", headers={"X-Request-Id": "x" * 128})
            path = "/" + "a" * 500
            for _ in range(200):
                client.get(path, headers={"X-Request-Id": "x" * 128})
            assert client.get("/health").status_code == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=PATIENCE) == 0
