"""For all tests: one thread, a seed for each test, reproducible property tests, checked tensor names, and `--fast`."""

import os
import signal
import sys
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from allyouneed import kernels
from helpers import CommandRunner, ShapeChecker

hypothesis.settings.register_profile(
    "tests", derandomize=True, deadline=None, max_examples=25, database=None, print_blob=False
)
hypothesis.settings.load_profile("tests")

# Audit events of a new process. A compiler is allowed: kernels are built once, on first use.
SPAWNING = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
COMPILERS = ("cc", "gcc", "clang")
SYSTEM_TESTS = ("cli", "faults", "serve")  # folders of tests of the whole program


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-shapes", action="store_true", help="do not check that x_BTD has three axes (faster)")
    parser.addoption(
        "--fast", action="store_true", help="units and contracts: no slow test, no process, no shape check"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "no_shapes: runs without the check of shape suffixes, for speed")
    torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background by a shell; children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--fast"):
        sys.addaudithook(_skip_processes)
    if os.environ.get("ALLYOUNEED_SANITIZE") and not config.getoption("numprocesses", None):
        _sanitize_this_process_only()


def _sanitize_this_process_only() -> None:
    """Load the sanitized kernels, and start children without: a browser does not run with a sanitizer's runtime."""
    assert kernels.build.library() is not None
    for name in ("ALLYOUNEED_SANITIZE", "LD_PRELOAD"):
        os.environ.pop(name, None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--fast"):
        left_out = [item for item in items if _is_slow(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not _is_slow(item)]


def _is_slow(item: pytest.Item) -> bool:
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return folder in SYSTEM_TESTS or item.get_closest_marker("slow") is not None


def _skip_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """Skip the running test when it starts a process. Children inherit nothing: the hook ends with the process."""
    if event not in SPAWNING or "PYTEST_CURRENT_TEST" not in os.environ:
        return
    program = os.path.basename(os.fsdecode(arguments[0])) if event == "subprocess.Popen" else ""
    if program not in COMPILERS:
        pytest.skip(f"starts a process ({program or event}), which --fast leaves out")


def pytest_runtest_setup(item: pytest.Item) -> None:
    torch.manual_seed(zlib.crc32(item.nodeid.encode()))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Run each test under the shape checker. A wrong name fails the test, whatever else happened."""
    left_out = any(map(pyfuncitem.config.getoption, ("--no-shapes", "--fast")))
    if left_out or pyfuncitem.get_closest_marker("no_shapes"):
        return (yield)
    checker = ShapeChecker()
    before = sys.getprofile()
    sys.setprofile(checker.profile)
    try:
        return (yield)
    finally:
        sys.setprofile(before)
        if checker.wrong_names:
            raise AssertionError("\n".join(dict.fromkeys(checker.wrong_names)))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CommandRunner:
    """Return a function that runs a command in this process."""
    return CommandRunner(capsys, monkeypatch, tmp_path / "stdin")
