"""Small tasks as files of lines, each made for one claim.

    the cat chased the dog -> cat             the agent of the sentence; needs the order of words
    7 3 9 .. 4 -> 7                           the first digit; needs a long reach

Held-out lines are not in the training data. The two animals of a held-out sentence never occur together in training, in
either order: a model that sees which two there are, but not their order, is right half of the time.
"""

import random
from typing import Any

from allyouneed.lab.claims.small_runs import scratch

ANIMALS = "ant bat bear bee cat cow crab deer dog dove duck fox frog goat hen lion mole mouse owl pig rat seal wolf yak"
VERBS = "chased saw heard liked"
HELD_OUT = 6  # one pair in this many is held out
TRAIN, VALID = 6000, 300  # lines of the digit task


def agent_task(seed: int, *, classes: bool, batch: int = 64) -> dict[str, Any]:
    """Return the agent task, as classification (for encoders) or as translation (for models that generate)."""
    rows: dict[str, list[str]] = {"train": [], "valid": []}
    animals, dice = ANIMALS.split(), random.Random(seed)
    for number, one in enumerate(animals):
        for other in animals[:number]:
            split = "valid" if dice.random() * HELD_OUT < 1 else "train"
            for verb in VERBS.split():
                for doer, done_to in ((one, other), (other, one)):
                    sentence = f"the {doer} {verb} the {done_to}"
                    rows[split].append(f"{doer}\t{sentence}" if classes else f"{sentence}\t{doer}")
    return _task("classification" if classes else "translation", rows, f"who {seed} {classes}", 7 * batch)


def first_digit(seed: int, length: int = 32, batch: int = 32) -> dict[str, Any]:
    """Return the task of finding the first of `length` random digits."""
    dice, lines = random.Random(seed), []
    for _ in range(TRAIN + VALID):
        digits = [str(int(dice.random() * 10)) for _ in range(length)]
        lines.append(f"{' '.join(digits)}\t{digits[0]}")
    return _task("translation", _split(lines), f"first {seed} {length}", (length + 1) * batch)


def _split(lines: list[str]) -> dict[str, list[str]]:
    return {"valid": lines[:VALID], "train": lines[VALID:]}


def _task(kind: str, rows: dict[str, list[str]], key: str, tokens: int) -> dict[str, Any]:
    folder = scratch(key)
    for split, lines in rows.items():
        path = folder / f"{split}.tsv"
        if not path.exists():
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = {split: str(folder / f"{split}.tsv") for split in rows}
    return {"type": kind, **files, "tokenizer": {"kind": "words"}, "batch_tokens": tokens, "max_length": tokens}
