"""Signals while a tokeniser is trained: one line, exit status 130, no child left; the next attempt continues."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_commands import ENVIRONMENT, HEADS, SMALL

from waiting import PATIENCE, until


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with pairs whose unigram tokeniser takes long to train."""
    folder, choice = tmp_path_factory.mktemp("corpus"), random.Random(1)
    words = ["".join(choice.choices("abcdefghijklmnopqrstuvwxyz", k=choice.randint(3, 12))) for _ in range(200_000)]
    for name in ("train.en", "train.de", "valid.en", "valid.de"):
        lines = 60_000 if name.startswith("train") else 5
        text = "".join(" ".join(choice.choices(words, k=12)) + "\n" for _ in range(lines))
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def start(corpus: Path, out: Path) -> subprocess.Popen[str]:
    sets = ['task.train=["train.en","train.de"]', 'task.valid=["valid.en","valid.de"]', "task.tokenizer.kind=unigram"]
    sets += [HEADS, "model.encoder_layers=1", "model.decoder_layers=1"]
    flags = [flag for pair in sets for flag in ("--set", pair)]
    command = [sys.executable, "-m", "allyouneed", "train", "--task", "translation", "--model", "encoder-decoder"]
    command += ["--steps", "2", *SMALL, *flags, "--out", str(out)]
    return subprocess.Popen(command, cwd=corpus, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def trainer_of(process: subprocess.Popen[str]) -> int:
    """Wait until the child process that trains a tokeniser uses processor time, and return its id."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        for child in map(int, children.read_text().split() if children.exists() else []):
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            if int(fields[11]) > 2 * os.sysconf("SC_CLK_TCK"):  # two seconds in user mode
                return child
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    raise AssertionError("no child process trains a tokeniser")


def wait_until_gone(process: int) -> None:
    until(lambda: not Path(f"/proc/{process}").exists())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_training_of_a_tokenizer(corpus: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = start(corpus, tmp_path / "run")
    trainer = trainer_of(process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    wait_until_gone(trainer)
    data = tmp_path / "run" / "data"
    assert not (data / "preparing" / "codec").exists()  # it was not trained to its end
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        return
    assert process.returncode == 130
    # A slow machine prints progress before that.
    assert errors.splitlines()[-1] == "error: stopped while preparing the data; the same command continues from there"
    assert sorted(path.name for path in data.iterdir()) == ["preparing"]
