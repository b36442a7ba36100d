"""What HTTP clients and proxies rely on: HEAD, CORS headers of errors, hang-ups that are no failures, moved folders."""

import logging
import shutil
import socket
from pathlib import Path

import httpx2 as httpx
import pytest
from hostile_bodies import FIELDS
from serve_folders import running, translator

from allyouneed.serve.backend import Backend
from waiting import PATIENCE, until

pytestmark = pytest.mark.no_shapes
ORIGIN = "http://friend.example"


def counted(backend: Backend, status: int) -> float:
    """Return how many responses had this status."""
    (metric,) = backend.metrics.requests.collect()
    return sum(
        sample.value
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["status"] == str(status)
    )


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", FIELDS)
def test_hanging_up_in_a_body_is_no_failure(
    server: tuple[str, Backend], caplog: pytest.LogCaptureFixture, path: str, chunked: bool
) -> None:
    url, backend = server
    host, port = url.removeprefix("http://").split(":")
    before, failures = counted(backend, 499), counted(backend, 500)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += 'Transfer-Encoding: chunked\r\n\r\n5\r\n{"q":\r\n' if chunked else 'Content-Length: 90\r\n\r\n{"q":'
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(head.encode())
        until(lambda: backend.active)
    until(lambda: counted(backend, 499) > before)
    assert (counted(backend, 499), counted(backend, 500)) == (before + 1, failures)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/health",
        "/metrics",
        "/v1/models",
        "/v1/models/language",
        "/languages",
        "/frontend/settings",
        "/page/main.js",
    ],
)
def test_head_is_get_without_a_body(url: str, path: str) -> None:
    got, head = httpx.get(url + path), httpx.head(url + path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    if path != "/metrics":
        assert head.headers["content-length"] == got.headers["content-length"]


def test_head_of_other_methods_and_paths(url: str) -> None:
    assert httpx.head(f"{url}/translate").status_code == 405
    assert httpx.head(f"{url}/nothing").status_code == 404


def test_the_connection_is_usable_after_head(url: str) -> None:
    with httpx.Client() as client:
        assert [client.head(f"{url}/v1/models").status_code for _ in range(3)] == [200] * 3
        assert client.get(f"{url}/v1/models").json()["object"] == "list"


def test_pages_of_allowed_origins_can_read_errors(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with running(folders[:1], cors=[ORIGIN], keys=["right"], max_body=1000, client_requests=1) as (url, backend):
        right, kind = {"Authorization": "Bearer right"}, {"Content-Type": "application/json"}

        def post(content: bytes, **headers: str) -> httpx.Response:
            return httpx.post(f"{url}/score", content=content, headers={"Origin": ORIGIN, **headers})

        found = {
            "key": post(b"{}"),
            "wrong key": post(b"{}", Authorization="Bearer wrong"),
            "size": post(b"a" * 2000, **right, **kind),
            "host": post(b"{}", **right, **kind, Host="elsewhere.example"),
            "body": post(b"{", **right, **kind),
            "path": httpx.get(f"{url}/nothing", headers={"Origin": ORIGIN, **right}),
            "method": httpx.get(f"{url}/score", headers={"Origin": ORIGIN, **right}),
        }
        monkeypatch.setattr(backend, "draining", True)
        found["shutdown"] = post(b"{}", **right, **kind)
        monkeypatch.setattr(backend, "draining", False)
        monkeypatch.setattr(backend, "models", None)
        found["bug"] = httpx.get(f"{url}/v1/models", headers={"Origin": ORIGIN, **right})
        monkeypatch.undo()
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        found["preflight"] = httpx.options(f"{url}/score", headers={"Origin": ORIGIN, **asked})
    statuses = {name: response.status_code for name, response in found.items()}
    assert statuses == {
        "key": 401,
        "wrong key": 401,
        "size": 413,
        "host": 400,
        "body": 400,
        "path": 404,
        "method": 405,
        "shutdown": 503,
        "bug": 500,
        "preflight": 200,
    }
    for name, response in found.items():
        assert response.headers.get("access-control-allow-origin") == ORIGIN, name
        assert "default-src 'none'" in response.headers["content-security-policy"], name


def test_models_are_listed_after_their_folder_was_moved(tmp_path: Path) -> None:
    folder = translator(tmp_path, "numbers")
    with running([folder]) as (url, _):
        before = httpx.get(f"{url}/v1/models").json()
        shutil.move(folder, tmp_path / "elsewhere")
        assert httpx.get(f"{url}/v1/models").json() == before
        assert httpx.get(f"{url}/v1/models/numbers-de").json() == before["data"][0]
        assert httpx.get(f"{url}/api/models").status_code == 200
        fields = {"q": "one", "source": "en", "target": "de"}
        assert httpx.post(f"{url}/translate", json=fields).status_code == 200
