"""Small tasks as files of lines, made for one question each.

    the cat chased the dog -> cat             who did it? nobody can say who is blind to order
    7 3 9 .. 4 -> 7                           what came first? nobody can say who does not reach it

Held-out lines are not in training; of the animals, the two of a held-out line never meet in training, in neither order:
whoever knows which two there are, but not their order, is right half of the time.
"""

import random
from typing import Any

from allyouneed.lab.claims.trial import scratch

ANIMALS = "ant bat bear bee cat cow crab deer dog dove duck fox frog goat hen lion mole mouse owl pig rat seal wolf yak"
VERBS = "chased saw heard liked"
HELD_OUT = 6  # of so many pairs one
TRAIN, VALID = 6000, 300  # lines of the other tasks


def who_did_it(seed: int, *, classes: bool, batch: int = 64) -> dict[str, Any]:
    """Who did it, as classification (an encoder answers) or as translation (whoever writes answers)."""
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


def first_word(seed: int, length: int = 32, batch: int = 32) -> dict[str, Any]:
    """The first of `length` random digits."""
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
