"""Tiny models, trained through the command line."""

from collections.abc import Iterator

import pytest
from cli_commands import HEADS, NUMBERS, SMALL, Commands


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    commands = Commands(tmp_path_factory.mktemp("commands"))
    yield commands
    commands.close()


@pytest.fixture(scope="session")
def numbers(run: Commands) -> str:
    """Return a run folder with a barely trained translator."""
    done = run("train", *NUMBERS, "--out", "numbers")
    assert done.status == 0, done.err
    return str(run.folder / "numbers")


@pytest.fixture(scope="session")
def language(run: Commands) -> str:
    """Return a run folder with a language model over bytes."""
    (run.folder / "text.txt").write_text("the cat sat on the mat, ähem. " * 40, encoding="utf-8")
    sets = {
        "task.train": "text.txt",
        "task.split": [0.8, 0.2],
        "task.context": 16,
        "task.tokenizer.kind": "bytes",
        "model.layers": 1,
    }
    flags = [flag for key, value in sets.items() for flag in ("--set", f"{key}={value}")] + ["--set", HEADS]
    done = run("train", "--task", "language", "--model", "decoder", "--steps", "10", *SMALL, *flags, "--out", "lm")
    assert done.status == 0, done.err
    return str(run.folder / "lm")


@pytest.fixture(scope="session")
def classifier(run: Commands) -> str:
    """Return a run folder with a classifier of good and bad."""
    rows = "".join(f"good\tnice {n}\nbad\tugly {n}\n" for n in range(30))
    (run.folder / "labels.tsv").write_text(rows, encoding="utf-8")
    sets = ["task.train=labels.tsv", "task.valid=labels.tsv", "task.tokenizer.kind=words", "model.layers=1"]
    sets += [HEADS, "train.optimizer.lr=0.02"]
    flags = [flag for pair in sets for flag in ("--set", pair)]
    done = run("train", "--task", "classification", "--model", "encoder", "--steps", "30", *SMALL, *flags, "--out", "c")
    assert done.status == 0, done.err
    return str(run.folder / "c")
