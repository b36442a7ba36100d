"""nginx with the configuration of `deploy/` in front of two servers, and the other files of `deploy/`."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
from nginx_proxy import CONFIGURATION, MISSING, NGINX, RestartableServer, two_servers_behind_nginx, write_configuration
from test_serve_lifecycle import LONG

from allyouneed.serve.setup import Source
from waiting import until

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
from rolling_restart import roll

pytestmark = pytest.mark.no_shapes
needs_nginx = pytest.mark.skipif(NGINX is None, reason=MISSING)
DEPLOY = CONFIGURATION.parent


@pytest.fixture(scope="module")
def proxied(
    folders: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, list[RestartableServer], Path]]:
    arguments = [str(folders[3]), str(folders[0]), "--limit", "max_tokens=1000000"]
    with two_servers_behind_nginx(tmp_path_factory.mktemp("nginx"), arguments) as found:
        yield found


def logged(log: Path) -> dict[str, str]:
    """Return the clients of all requests that are complete, by their ids."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
    return {line["request_id"]: line["client"] for line in lines if "request_id" in line}


@needs_nginx
def test_the_configuration_is_valid(tmp_path: Path) -> None:
    assert NGINX is not None
    main = write_configuration(tmp_path, 8000, [8001, 8002])
    found = subprocess.run([NGINX, "-t", "-c", str(main), "-p", str(tmp_path)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


@needs_nginx
def test_streams_and_disconnects_pass_at_once(proxied: tuple[str, list[RestartableServer], Path]) -> None:
    url, _, log = proxied
    body, headers = {**LONG, "max_tokens": 1_000_000, "stream": True}, {"X-Request-Id": "stream"}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as response:
        assert response.status_code == 200
        assert next(response.iter_lines()).startswith("data: {")
        assert "stream" not in logged(log)  # an event has arrived, and the end is far
    until(lambda: "stream" in logged(log))  # the client has left


@needs_nginx
def test_the_log_names_the_client_and_its_request(proxied: tuple[str, list[RestartableServer], Path]) -> None:
    url, _, log = proxied
    headers = {"X-Request-Id": "from-client", "X-Forwarded-For": "203.0.113.9"}
    assert httpx.get(f"{url}/version", headers=headers).headers["x-request-id"] == "from-client"
    generated = httpx.get(f"{url}/version").headers["x-request-id"]
    assert len(generated) == 32  # nginx's own
    until(lambda: {"from-client", generated} <= logged(log).keys())
    assert logged(log)["from-client"] == "127.0.0.1"  # nginx replaces the header of the client


@needs_nginx
def test_a_rolling_restart_loses_no_request(proxied: tuple[str, list[RestartableServer], Path]) -> None:
    url, servers, _ = proxied
    load = roll(url, servers, requests=100, restarts=1, clients=6)
    assert sum(load.counts.values()) >= 100
    assert load.failed == []


# --- the other files -------------------------------------------------------------------------------------------------


def test_the_example_of_a_configuration_is_valid() -> None:
    setup = Source(str(DEPLOY / "serve.toml")).read()
    assert setup.models


def test_the_systemd_unit_is_valid(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "allyouneed@.service"
    text = (DEPLOY / "allyouneed@.service").read_text()
    unit.write_text(text.replace("/opt/allyouneed/bin/allyouneed", sys.executable))  # the command must exist
    found = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert (found.returncode, [line for line in found.stderr.splitlines() if "allyouneed" in line]) == (0, [])
