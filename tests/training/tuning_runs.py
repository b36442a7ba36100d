"""Tiny models of each kind, and the commands that train them on other data."""

from pathlib import Path
from typing import Any

import pytest

from allyouneed.cli import run
from allyouneed.config import parse
from allyouneed.folder import Bundle, load_folder
from allyouneed.training import Recipe, train
from allyouneed.training.log import read_log

STACK = {"width": 16, "hidden": 16, "mixer": {"type": "softmax", "heads": 2}, "dropout": 0.1}
TRAINING = {"budget": {"steps": 2}, "log_every": 1, "evaluate_every": 0.5}
PAIRS = [("one red cat", "eine rote Katze"), ("two old dogs", "zwei alte Hunde"), ("a big house", "ein großes Haus")]
OTHER = [("free games", "freie Spiele"), ("a new shell", "eine neue Shell"), ("old text tools", "alte Textprogramme")]


def write_pairs(folder: Path, name: str, pairs: list[tuple[str, str]]) -> list[str]:
    """Write parallel files; return their paths."""
    paths = [folder / f"{name}.en", folder / f"{name}.de"]
    for side, path in enumerate(paths):
        path.write_text("".join(f"{pair[side]}\n" for pair in pairs * 4), encoding="utf-8")
    return list(map(str, paths))


def write_labels(folder: Path, name: str, labels: str) -> str:
    """Write labelled texts, one for each letter of `labels` and number; return the path."""
    path = folder / name
    path.write_text("".join(f"{label}\ttext {label} {n}\n" for n in range(6) for label in labels), encoding="utf-8")
    return str(path)


def trained(folder: Path, task: dict[str, Any], model: dict[str, Any]) -> str:
    """Train a tiny model; return its run folder."""
    train(parse(Recipe, {"task": task, "model": {**STACK, **model}, "train": TRAINING}), folder)
    return str(folder)


def make_translator(folder: Path) -> str:
    files = write_pairs(folder, "general", PAIRS)
    task = {"type": "translation", "train": files, "valid": files, "tokenizer": {"kind": "bpe", "size": 290}}
    return trained(folder / "translator", task, {"type": "encoder-decoder", "encoder_layers": 1, "decoder_layers": 1})


def make_language_model(folder: Path) -> str:
    (folder / "general.txt").write_text("the cat sat on the mat. " * 20, encoding="utf-8")
    task = {"type": "language", "train": str(folder / "general.txt"), "split": [0.8, 0.2], "context": 12, "batch": 4}
    return trained(folder / "language", task, {"type": "decoder", "layers": 1})


def make_classifier(folder: Path) -> str:
    file = write_labels(folder, "general.tsv", "ab")
    task = {"type": "classification", "train": file, "valid": file, "tokenizer": {"kind": "bpe", "size": 270}}
    return trained(folder / "classifier", task, {"type": "encoder", "layers": 1})


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command in this process; return its standard error. Fail if the command failed."""
    status = run(list(map(str, arguments)))
    found = capsys.readouterr()
    assert status == 0, found.err
    return found.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the error line of a command that fails."""
    assert run(list(map(str, arguments))) != 0
    return capsys.readouterr().err


def tune(capsys: pytest.CaptureFixture[str], start: str, out: Path, *arguments: object) -> tuple[Bundle, str]:
    """Train from a model; return the new model and standard error."""
    notes = command(capsys, "train", "--from", start, "--steps", 2, "--out", out, *arguments)
    return load_folder(out), notes


def first_loss(run_folder: Path) -> float:
    """Return the held-out loss before the first step."""
    found = [record["loss"] for record in read_log(run_folder / "log.jsonl") if record["kind"] == "evaluation"]
    return float(found[0])
