"""`serve --config`, SIGHUP, and the options for a proxy in front of the server."""

import asyncio
import fcntl
import gc
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from raw_http import read_status
from serve_folders import language_model, running, translator
from serve_process import process
from test_serve_lifecycle import LONG, send

from allyouneed.decode.running_batch import Row
from allyouneed.decode.sample import SampleConfig, uniforms
from allyouneed.errors import ConfigError, DataError
from allyouneed.serve import create_app
from allyouneed.serve.backend import Backend
from allyouneed.serve.errors import Refusal
from allyouneed.serve.reload import Reloader
from allyouneed.serve.request_record import RequestRecord
from allyouneed.serve.setup import Setup, Source
from allyouneed.serve.worker import BatchOperation
from allyouneed.text.specials import BOS, EOS
from waiting import PATIENCE, until

pytestmark = pytest.mark.no_shapes
SHORT = {"model": "language", "prompt": "to be or", "max_tokens": 5, "temperature": 0}


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


# --- the file --------------------------------------------------------------------------------------------------------


def test_a_file_states_everything_and_options_override_it(tmp_path: Path) -> None:
    write(tmp_path / "keys.txt", "one\ntwo\n")
    file = write(
        tmp_path / "serve.toml",
        """
        host = "0.0.0.0"
        port = 9000
        hosts = ["models.example"]
        keys = "keys.txt"
        runs = "runs"
        access_log = "json"
        log_level = "warning"
        root_path = "/models"
        trust_proxy = ["10.0.0.0/8"]
        max_characters = 5000
        batch = 8
        int8 = true
        [models]
        demo = "demo"
        news = { folder = "/srv/news", languages = "en:de" }
        """,
    )
    setup = Source(file, {"port": 9001}, ["batch=4"], languages=["demo=fr:es"]).read()
    assert (setup.host, setup.port, setup.batch, setup.int8) == ("0.0.0.0", 9001, 4, True)
    assert (setup.keys, setup.runs) == (("one", "two"), str(tmp_path / "runs"))
    assert {name: (entry.folder, entry.pair) for name, entry in setup.models.items()} == {
        "demo": (str(tmp_path / "demo"), ("fr", "es")),
        "news": ("/srv/news", ("en", "de")),
    }
    assert list(Source(file, models=["x=y"]).read().models) == ["x"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 1\n[models]\na = 'b'", "unknown name 'prot' (did you mean 'port'?)"),
        ("[models]\na = { foler = 'b' }", "models.a: unknown name 'foler' (did you mean 'folder'?)"),
        ("[models]\na = { folder = 'b', languages = 'en' }", "models.a.languages: should look like en:de"),
        ("[models]\n'a b' = 'c'", "'a b' is not a valid model name"),
        ("models = 3", "models: should be a table"),
        ("port = 1", "no models"),
        ("root_path = 'x/'\n[models]\na = 'b'", "root_path"),
        ("trust_proxy = ['proxy']\n[models]\na = 'b'", "'proxy' is not an address"),
        ("keys = 'nosuch'\n[models]\na = 'b'", "nosuch: not readable: No such file"),
        ("port = ", "not readable as TOML"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, text: str, words: str) -> None:
    file = write(tmp_path / "serve.toml", text)
    with pytest.raises(ConfigError) as error:
        Source(file).read()
    assert words in str(error.value)
    assert "serve.toml" in str(error.value)


# --- SIGHUP ----------------------------------------------------------------------------------------------------------


class Log:
    """The lines of a server's stderr, read as they are written."""

    def __init__(self, server: "subprocess.Popen[str]") -> None:
        self.lines: list[str] = []
        assert server.stderr is not None
        threading.Thread(target=self.lines.extend, args=(server.stderr,), daemon=True).start()

    def wait(self, words: str, count: int = 1) -> None:
        until(lambda: sum(words in line for line in list(self.lines)) >= count)


@contextmanager
def configured(folder: Path, text: str) -> Iterator[tuple["subprocess.Popen[str]", str, Log]]:
    file = write(folder / "serve.toml", text)
    with process("--config", file) as (server, host, port):
        yield server, f"http://{host}:{port}", Log(server)


def models_of(url: str, key: str | None = None) -> list[str]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return [model["id"] for model in httpx.get(f"{url}/v1/models", headers=headers).json()["data"]]


def test_sighup_reloads_models_and_keeps_requests(tmp_path: Path, folders: list[Path]) -> None:
    """A long request runs through all reloads and finishes on the model that it began with."""
    shutil.copytree(folders[3], tmp_path / "language")
    text = "max_tokens = 1000000\ndeadline = 300\n[models]\nlanguage = 'language'\n"
    with configured(tmp_path, text) as (server, url, log):
        long = {**LONG, "max_tokens": 3000, "seed": 1}
        alone = httpx.post(f"{url}/v1/completions", json=long).json()["choices"][0]["text"]
        answers: list[dict[str, Any]] = []

        def post() -> None:
            answers.append(httpx.post(f"{url}/v1/completions", json=long).json())

        thread = threading.Thread(target=post)
        thread.start()
        until(lambda: answers or 'allyouneed_running{model="language"} 1.0' in httpx.get(f"{url}/metrics").text)
        # The folder now holds another model, a second one appears.
        shutil.rmtree(tmp_path / "language")
        other = language_model(tmp_path / "new", kind="bytes")
        other.rename(tmp_path / "language")
        write(tmp_path / "serve.toml", f"{text}numbers = {json.dumps(str(folders[0]))}\n")
        server.send_signal(signal.SIGHUP)
        log.wait("loaded language; loaded numbers")
        assert models_of(url) == ["language", "numbers"]
        assert [model["name"] for model in httpx.get(f"{url}/api/models").json()] == [
            "language",
            "numbers",
        ]
        assert httpx.get(f"{url}/ready").json()["models"] == ["language", "numbers"]
        body = {"q": "one", "source": "en", "target": "de"}
        assert httpx.post(f"{url}/translate", json=body).status_code == 200
        changed = httpx.post(f"{url}/v1/completions", json={**SHORT, "prompt": "to be"}).json()
        assert changed["usage"]["prompt_tokens"] == len("to be")  # tokens are bytes now
        thread.join()
        assert answers[0]["choices"][0]["text"] == alone
        # And away again.
        write(tmp_path / "serve.toml", text)
        server.send_signal(signal.SIGHUP)
        log.wait("removed numbers")
        assert models_of(url) == ["language"]
        assert 'allyouneed_waiting{model="numbers"}' not in httpx.get(f"{url}/metrics").text
        assert httpx.post(f"{url}/translate", json=body).status_code == 400
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=PATIENCE) == 0


def test_sighup_reloads_keys(tmp_path: Path, folders: list[Path]) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("old\n")
    with process(str(folders[3]), "--keys", str(keys)) as (server, host, port):
        url, log = f"http://{host}:{port}", Log(server)
        assert models_of(url, "old") == ["language"]
        keys.write_text("new\n")
        server.send_signal(signal.SIGHUP)
        log.wait("1 keys; models: unchanged")
        assert models_of(url, "new") == ["language"]
        assert httpx.get(f"{url}/v1/models", headers={"Authorization": "Bearer old"}).status_code == 401
        keys.unlink()  # a mistake changes nothing
        server.send_signal(signal.SIGHUP)
        log.wait("nothing was changed: --keys")
        assert models_of(url, "new") == ["language"]


def test_a_folder_that_fails_to_load_keeps_the_model(tmp_path: Path, folders: list[Path]) -> None:
    shutil.copytree(folders[3], tmp_path / "language")
    with configured(tmp_path, "[models]\nlanguage = 'language'\n") as (server, url, log):
        (tmp_path / "language" / "manifest.json").write_text("{}")
        write(tmp_path / "serve.toml", "queue = 7\n[models]\nlanguage = 'language'\nmissing = 'nosuch'\n")
        server.send_signal(signal.SIGHUP)
        log.wait("the model language is served as before: ")
        log.wait("the model missing is not served: ")
        log.wait("applied only after a restart: queue")
        log.wait("models: unchanged")
        assert all(line.startswith("20") for line in log.lines)  # one line each, no traceback
        assert httpx.post(f"{url}/v1/completions", json=SHORT).status_code == 200
        write(tmp_path / "serve.toml", "[models\n")
        server.send_signal(signal.SIGHUP)
        log.wait("nothing was changed")
        assert models_of(url) == ["language"]


def test_no_request_is_lost_while_models_are_replaced(tmp_path: Path, folders: list[Path]) -> None:
    for name in ("a", "b"):
        shutil.copytree(folders[0] if name == "a" else translator(tmp_path / "x", "numbers"), tmp_path / name)
    link = tmp_path / "numbers"
    link.symlink_to("a")
    statuses: list[int] = []
    stop = threading.Event()
    with configured(tmp_path, "[models]\nnumbers = 'numbers'\n") as (server, url, log):

        def client() -> None:
            with httpx.Client() as session:
                while not stop.is_set():
                    body = {"q": "one\ntwo", "source": "en", "target": "de"}
                    statuses.append(session.post(f"{url}/translate", json=body).status_code)

        threads = [threading.Thread(target=client) for _ in range(4)]
        for thread in threads:
            thread.start()
        for round_ in range(4):
            write(tmp_path / "serve.toml", f"[models]\nnumbers = '{'ab'[(round_ + 1) % 2]}'\n")
            server.send_signal(signal.SIGHUP)
            log.wait("loaded numbers", round_ + 1)
        until(lambda: len(statuses) > 20)
        stop.set()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200}


def test_a_setup_that_cannot_be_read_changes_nothing(folders: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    setup = Source(models=[str(folders[3])]).read()

    def read() -> Setup:
        raise OSError(5, "Input/output error")

    asyncio.run(Reloader(create_app(setup, {}).state.backend, setup, read).reload())
    assert caplog.messages == ["reload: nothing was changed: [Errno 5] Input/output error"]


@pytest.mark.parametrize("failed", [False, True], ids=["idle", "after a failure"])
def test_a_replaced_model_is_freed(
    tmp_path: Path, folders: list[Path], monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    """Its last user frees it, without the garbage collector, for which `server.py` has frozen it.

    Only a request that failed may be a cycle. Then a collection is needed, but not one of what is frozen.
    """
    shutil.copytree(folders[0], tmp_path / "model")
    source = Source(models=[f"m={tmp_path / 'model'}"])
    setup = source.read()

    def fail(items: Sequence[Any]) -> Sequence[Any]:
        raise DataError("wrong")

    async def use(backend: Backend) -> None:
        served = backend.models["m"]
        engine = backend.engine_of(served)
        await engine.run(backend.search(served, served.search), ["one"])
        async for _ in engine.generate([Row([BOS], [5, EOS], SampleConfig(), uniforms(9, 0, 0))]):
            pass
        if failed:
            with pytest.raises(Refusal, match="wrong"):
                await engine.run(BatchOperation("fail", fail), ["one"])

    async def replace() -> None:
        backend = create_app(setup, {"m": setup.open("m")}).state.backend
        backend.start()
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            if not failed:
                monkeypatch.setattr("allyouneed.serve.reload.gc.collect", lambda: 0)
            old = weakref.ref(backend.models["m"].bundle.model)
            await use(backend)
            request = RequestRecord()
            backend.requests.add(request)
            shutil.rmtree(tmp_path / "model")
            shutil.copytree(folders[1], tmp_path / "model")
            await Reloader(backend, setup, source.read).reload()
            await asyncio.sleep(0.2)
            assert old() is not None  # a request in progress may use it
            assert len(backend.retired) == 1
            backend.requests.discard(request)
            async with asyncio.timeout(PATIENCE):
                while old() is not None:
                    await asyncio.sleep(0.01)
            assert backend.retired == []
        finally:
            gc.enable()
            gc.unfreeze()
            backend.close()

    asyncio.run(replace())


def test_a_server_ends_with_its_terminal(folders: list[Path]) -> None:
    """SIGHUP is also the signal of a terminal that was closed."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "allyouneed", "serve", str(folders[3]), "--port", "0"]

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    with subprocess.Popen(
        command, stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=take_terminal
    ) as server:
        try:
            os.close(slave)
            assert server.stdout is not None
            address = server.stdout.readline().decode().split("http://")[1].split()[0]
            assert httpx.get(f"http://{address}/ready").status_code == 200
            os.close(master)
            assert server.wait(timeout=PATIENCE) == 0
        finally:
            server.kill()


# --- behind a proxy --------------------------------------------------------------------------------------------------


def test_a_root_path(folders: list[Path]) -> None:
    """The proxy removes the prefix from paths; the page and the description name what a client has to request."""
    with running(folders[3:4], root_path="/models", keys=["secret"]) as (url, _):
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/v1/models").status_code == 401
        key = {"Authorization": "Bearer secret"}
        assert httpx.get(f"{url}/v1/models", headers=key).status_code == 200
        assert httpx.get(f"{url}/openapi.json").json()["servers"] == [{"url": "/models"}]
        assert 'src="page/main.js"' in httpx.get(f"{url}/").text
        assert httpx.get(f"{url}/page/main.js").status_code == 200


@pytest.mark.parametrize(("trusted", "client"), [([], "127.0.0.1"), (["127.0.0.1"], "203.0.113.7")])
def test_forwarded_headers_count_only_from_trusted_proxies(
    folders: list[Path], trusted: list[str], client: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="allyouneed.access")
    with running(folders[3:4], trust_proxy=trusted) as (url, _):
        headers = {"X-Forwarded-For": "198.51.100.1, 203.0.113.7", "X-Forwarded-Proto": "https"}
        assert httpx.get(f"{url}/health", headers=headers).status_code == 200
        until(lambda: bool(caplog.records))
    assert caplog.records[0].__dict__["entry"]["client"] == client


def test_several_sighups_at_once_do_not_end_the_server(folders: list[Path]) -> None:
    with process(str(folders[3])) as (server, host, port):
        log = Log(server)
        for _ in range(3):
            server.send_signal(signal.SIGHUP)
        log.wait("reload: 0 keys; models: unchanged")
        waiting = send(f"http://{host}:{port}", SHORT)
        assert read_status(waiting) == 200
        waiting.close()
