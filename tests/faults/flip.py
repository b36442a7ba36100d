"""Truncate files and flip bits at random, and check that the program detects it.

    python tests/faults/flip.py --changes 3000

For each kind of file, half of the changes flip one bit, a quarter truncate, and a quarter overwrite some bytes with
noise. A change must be detected (a UserError) or harmless by construction: prepared data is rebuilt from its sources
to the same bytes; a log loses lines that training does not read. Any other outcome is a finding.
"""

import argparse
import collections
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from allyouneed.config import parse
from allyouneed.errors import FolderError, UserError
from allyouneed.folder import load_folder
from allyouneed.storage.checkpoints import checkpoint_paths
from allyouneed.training import Recipe, train
from allyouneed.training.checkpoint import Checkpoints
from allyouneed.training.log import Log, read_log

RECIPE = {
    "task": {"type": "numbers", "up_to": 60, "pairs": 40, "valid": 5, "test": 5, "batch_tokens": 512},
    "model": {
        **dict.fromkeys(("width", "hidden"), 8),
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
        "type": "encoder-decoder",
        "mixer": {"type": "softmax", "heads": 2},
    },
    "train": {"budget": {"steps": 4}, "evaluate_every": 0.5, "average": {"type": "ema"}},
}
MODEL_FILES = ("model.safetensors", "config.json", "tokenizer.json", "codec.json", "README.md", "manifest.json")
CHECKPOINT_FILES = ("model.safetensors", "optimizer.safetensors", "average.safetensors", "state.json", "manifest.json")
Check = Callable[[], str]  # returns "detected" or "harmless"; anything else is a finding


def damaged(data: bytes, dice: random.Random) -> bytes:
    """Return a damaged copy that differs from the data."""
    raw, at = bytearray(data), dice.randrange(len(data))
    match dice.randrange(4):
        case 0 | 1:
            raw[at] ^= 1 << dice.randrange(8)
        case 2:
            del raw[at:]
        case _:
            raw[at : at + dice.randint(1, 8)] = dice.randbytes(dice.randint(1, 8))
    return bytes(raw) if raw != data else data[:-1]


def check_model(run: Path) -> str:
    """Require that the model folder does not load."""
    try:
        load_folder(run / "model")
    except FolderError:
        return "detected"
    return "LOADED"


def check_checkpoint(run: Path) -> str:
    """Require that the damaged checkpoint is reported and the previous one is used."""
    damaged_path = checkpoint_paths(run / "checkpoints")[-1]
    checkpoints = Checkpoints(run)
    found = checkpoints.latest()
    if found == damaged_path or found is None or not checkpoints.warnings:
        return "USED"
    checkpoints.load(found)
    return "detected"


def check_data(run: Path, recipe: Recipe, good: dict[str, bytes]) -> str:
    """Require that damaged prepared data is rebuilt to the same bytes."""
    recipe.task.prepare(run / "data", recipe.seed)
    return "remade, the same" if contents(run / "data") == good else "DIFFERS"


def check_log(run: Path) -> str:
    """Require that an unreadable log is reported with its line, and that training drops a torn line and continues."""
    try:
        read_log(run / "log.jsonl")
        seen = "harmless"  # a changed digit or letter: no result depends on it
    except FolderError:
        seen = "detected"
    with Log(run / "log.jsonl") as log:
        log.rewind(2)
    return seen


def check_recipe(run: Path, recipe: Recipe) -> str:
    """Require that a run resumes only with its own recipe; changes without meaning (a blank) are harmless."""
    from allyouneed.training.recipe_files import load_recipe, require_same_recipe

    try:
        require_same_recipe(run, recipe)
    except UserError:
        return "detected"
    return "harmless" if load_recipe(str(run / "recipe.toml")) == recipe else "USED"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def kinds(run: Path, recipe: Recipe) -> dict[str, tuple[Path, Check]]:
    """Return one file of every kind that a run keeps, and how to check it."""
    last = checkpoint_paths(run / "checkpoints")[-1]
    good = contents(run / "data")
    table: dict[str, tuple[Path, Check]] = {}
    for name in MODEL_FILES:
        table[f"model/{name}"] = (run / "model" / name, lambda: check_model(run))
    for name in CHECKPOINT_FILES:
        table[f"checkpoint/{name}"] = (last / name, lambda: check_checkpoint(run))
    for file in sorted((run / "data" / "prepared").glob("*")):
        if file.is_file() and file.stat().st_size:
            table[f"prepared/{file.name}"] = (file, lambda: check_data(run, recipe, good))
    table["log.jsonl"] = (run / "log.jsonl", lambda: check_log(run))
    table["recipe.toml"] = (run / "recipe.toml", lambda: check_recipe(run, recipe))
    return table


# Rebuilding is slow, so all files of prepared data share the number of changes of one kind.
def count_outcomes(folder: Path, changes: int, seed: int) -> dict[str, "collections.Counter[str]"]:
    """Damage each kind of file `changes` times; return how often each outcome occurred."""
    torch.set_num_threads(1)
    recipe, dice = parse(Recipe, RECIPE), random.Random(seed)
    run = folder / "run"
    train(recipe, run)
    results: dict[str, collections.Counter[str]] = {}
    table = kinds(run, recipe)
    prepared = [name for name in table if name.startswith("prepared/")]
    for kind, (file, check) in table.items():
        if kind in prepared:
            many = -(-changes // len(prepared))
            counts = results.setdefault("prepared data", collections.Counter())
        else:
            many, counts = changes, results.setdefault(kind, collections.Counter())
        content = file.read_bytes()
        for _ in range(many):
            file.write_bytes(damaged(content, dice))
            try:
                counts[check()] += 1
            except Exception as error:  # any other exception is a finding
                counts[f"{type(error).__name__}: {error}"] += 1
            if kind in prepared and not file.exists():
                shutil.rmtree(run / "data" / "prepared")
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
    return results


FINE = {"detected", "harmless", "remade, the same"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=3000, help="for each kind of file")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = count_outcomes(Path(folder), options.changes, options.seed)
    findings = 0
    print(f"{'file':36}  {'changes':>7}  outcomes")
    for kind, counts in results.items():
        summary = ", ".join(f"{count:,} {what}" for what, count in counts.most_common(6))
        print(f"{kind:36}  {counts.total():7,}  {summary}")
        findings += sum(count for what, count in counts.items() if what not in FINE)
    sys.exit(f"{findings} changes were not detected" if findings else None)


if __name__ == "__main__":
    main()
