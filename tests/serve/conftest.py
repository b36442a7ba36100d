"""A server with models of all kinds, for the tests that need no special settings; a browser for those of the page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from page_browser import CHROMIUM, Browser
from serve_folders import language_model, reverser, running, translator

from allyouneed.serve.backend import Backend
from waiting import PATIENCE

# The default of httpx is five seconds, and a response may take longer on a busy machine. All its calls and clients use
# this object, so no test has to set a timeout.
for _part in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _part, PATIENCE)
assert httpx.Client().timeout == httpx.Timeout(PATIENCE)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [
        translator(folder, "numbers"),
        translator(folder, "lstm", target="fr", beam=3),
        translator(folder, "bytenet", target="es"),
        language_model(folder),
        reverser(folder),
    ]


@pytest.fixture(scope="session")
def server(folders: list[Path]) -> Iterator[tuple[str, Backend]]:
    with running(folders) as found:
        yield found


@pytest.fixture
def url(server: tuple[str, Backend]) -> str:
    return server[0]


@pytest.fixture(scope="module")  # not longer: other tests start event loops, and playwright's runs in this thread
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: `apt-get install chromium`")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Browser]:
    browser = Browser(chromium)
    yield browser
    assert browser.close() == []
