"""The library is compiled once, privately; if that fails, one line says why, and torch does the work."""

import logging
import os
import stat
import threading
from pathlib import Path

import pytest
import torch

from allyouneed import kernels
from allyouneed.kernels import build

pytestmark = [
    pytest.mark.skipif(build.library() is None, reason="no C compiler"),
    pytest.mark.usefixtures("no_gradients"),
]
load = build.library.__wrapped__  # without the cache


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ALLYOUNEED_SANITIZE", raising=False)
    return tmp_path


def test_gradients_and_other_dtypes_are_left_to_torch() -> None:
    assert kernels.usable(torch.zeros(1))
    assert not kernels.usable(torch.zeros(1, dtype=torch.float64))
    assert not kernels.usable(torch.zeros(1, device="meta"))
    with torch.enable_grad():
        assert not kernels.usable(torch.zeros(1))


@pytest.mark.no_shapes
@pytest.mark.parametrize(
    ("way", "reason", "remedy"),
    [
        ("no compiler", "no C compiler on PATH (tried cc, gcc, clang)", "install gcc or clang"),
        ("broken compiler", "error: no such option", "install a recent gcc or clang"),
        ("open folder", "others can write to it", "chmod 700"),
    ],
)
def test_without_kernels_one_line_says_why(
    way: str,
    reason: str,
    remedy: str,
    empty_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if way == "no compiler":
        monkeypatch.setenv("PATH", str(empty_cache))
    elif way == "broken compiler":
        broken = empty_cache / "cc"
        broken.write_text("#!/bin/sh\necho 'cc: note' >&2\necho 'cc: error: no such option' >&2\nexit 1\n")
        broken.chmod(0o700)
        monkeypatch.setenv("PATH", f"{empty_cache}{os.pathsep}{os.environ['PATH']}")
    else:
        (empty_cache / "allyouneed").mkdir()
        (empty_cache / "allyouneed").chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert load() is None
    [record] = caplog.records
    line = record.getMessage()
    assert line.startswith("C kernels are not used, decoding takes torch's slower path: ")
    assert reason in line
    assert remedy in line
    assert "\n" not in line


def test_turned_off_they_are_not_mentioned(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ALLYOUNEED_KERNELS", "off")
    assert load() is None
    assert not caplog.records


@pytest.mark.no_shapes
def test_compiled_once_in_a_private_folder(empty_cache: Path) -> None:
    """Threads that need the library at the same time compile it once."""
    loaded: list[object] = []
    threads = [threading.Thread(target=lambda: loaded.append(load())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 3
    assert None not in loaded
    made = {path: path.stat().st_mtime_ns for path in (empty_cache / "allyouneed").iterdir()}
    assert [path.name.split("-")[0] for path in made] == ["kernels"]
    assert stat.S_IMODE((empty_cache / "allyouneed").stat().st_mode) == 0o700
    assert load() is not None
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_a_sanitizer_is_never_left_out(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests under a sanitizer must not pass because torch did the work."""
    monkeypatch.setenv("ALLYOUNEED_SANITIZE", "memory")
    with pytest.raises(build.BuildError, match="unknown; use address or thread"):
        load()
    monkeypatch.setenv("ALLYOUNEED_SANITIZE", "address")
    monkeypatch.setenv("PATH", str(empty_cache))
    with pytest.raises(build.BuildError, match="no C compiler"):
        load()
