"""`translate` shows its progress on a terminal, and nowhere else."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from cli_commands import ENVIRONMENT, Commands


def test_a_bar_on_a_terminal(numbers: str, run: Commands, tmp_path: Path) -> None:
    lines = "".join(f"forty-{unit}\n" for unit in ("one", "two", "three")) * 400
    (tmp_path / "in").write_text(lines)
    done = run("translate", numbers, "--beam", "1", given=lines)
    assert "lines/s" not in done.err
    terminal, inner = pty.openpty()
    with (tmp_path / "in").open("rb") as given, (tmp_path / "out").open("wb") as out:
        command = [sys.executable, "-m", "allyouneed", "translate", numbers, "--beam", "1"]
        process = subprocess.Popen(
            command, stdin=given, stdout=out, stderr=inner, env={**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "100"}
        )
        os.close(inner)
        shown = _read(terminal)
        assert process.wait() == 0, shown
    assert (tmp_path / "out").read_text() == done.out
    assert "1,200 lines" in shown
    assert "lines/s" in shown
    assert "100%" in shown
    assert "left" in shown


def _read(terminal: int) -> str:
    """Return everything that is written to a terminal until it is closed."""
    shown = b""
    while True:
        try:
            block = os.read(terminal, 4096)
        except OSError:  # Linux reports a closed terminal as an error
            block = b""
        if not block:
            os.close(terminal)
            return shown.decode()
        shown += block
