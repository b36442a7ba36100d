"""A short version of corpora.py: some of the kinds through the command line; tests/text/test_lines.py has all."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["terminal escapes", "one bad UTF-8 line"])
def test_a_corpus_is_accepted_or_refused(kind: str) -> None:
    command = [sys.executable, str(Path(__file__).with_name("corpora.py")), "--only", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
