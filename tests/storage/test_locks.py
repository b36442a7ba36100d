"""One writer for a folder."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from allyouneed.errors import StorageError
from allyouneed.storage import discard, is_locked, lock

pytestmark = pytest.mark.no_shapes


HOLDER = """
import sys, time
from pathlib import Path
from allyouneed.storage import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(3600)
"""


def test_a_second_writer_is_kept_out_until_the_first_is_gone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(run)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StorageError, match=f"process {holder.pid} is writing"), lock(run):
            pass
        holder.kill()
    for _ in range(2):
        with lock(run), pytest.raises(StorageError, match=f"process {os.getpid()} is writing"), lock(run):
            pass


def test_a_lock_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("keep")
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(StorageError), lock(tmp_path):
        pass
    assert (tmp_path / "victim").read_text() == "keep"


def test_importing_storage_imports_no_torch() -> None:
    code = "import sys, allyouneed.storage; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_look_at_a_lock_does_not_refuse_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
    # `is_locked` holds a shared lock for an instant. Here it ends while the writer waits.
    looking = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr("allyouneed.storage.locks.time.sleep", lambda seconds: os.close(looking))
    with lock(tmp_path):
        assert is_locked(tmp_path)


def test_the_lock_of_a_folder_that_was_removed_meanwhile_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    first = lock(run)
    first.__enter__()

    def finish(seconds: float) -> None:
        discard(run)
        first.__exit__(None, None, None)

    monkeypatch.setattr("allyouneed.storage.locks.time.sleep", finish)  # the first writer ends while the second waits
    with lock(run):
        assert is_locked(run)
