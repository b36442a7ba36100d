"""Signals: commands that run inside another program leave its handlers alone; crashes leave a traceback."""

import signal
import subprocess
import sys

from allyouneed.cli import run

CRASH = """
import os, signal, sys
from allyouneed import cli
cli.run = lambda arguments: os.kill(os.getpid(), signal.SIGSEGV)
sys.argv = ["allyouneed", "serve"]
cli.main()
"""


def test_a_command_inside_another_program_keeps_sigpipe_ignored() -> None:
    """A server in the same process would otherwise die, without a message, when a client closes its connection."""
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
    assert run(["--version"]) == 0
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN


def test_a_crash_leaves_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert "most recent call first" in done.stderr
