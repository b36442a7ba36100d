"""Who did what to whom: the smallest task that nobody solves who is blind to order.

    the cat chased the dog -> cat

Pairs of animals that are held out are never met in training, in neither order. Whoever knows which two animals there
are, but not their order, is right half of the time.
"""

import random
from typing import Any

from allyouneed.lab.claims.trial import scratch

ANIMALS = "ant bat bear bee cat cow crab deer dog dove duck fox frog goat hen lion mole mouse owl pig rat seal wolf yak"
VERBS = "chased saw heard liked"
HELD_OUT = 6  # of so many pairs one


def who_did_it(seed: int, *, classes: bool, batch: int = 64) -> dict[str, Any]:
    """The task, as classification (an encoder answers) or as translation (whoever writes answers)."""
    rows: dict[str, list[str]] = {"train": [], "valid": []}
    animals, dice = ANIMALS.split(), random.Random(seed)
    for number, one in enumerate(animals):
        for other in animals[:number]:
            split = "valid" if dice.random() * HELD_OUT < 1 else "train"
            for verb in VERBS.split():
                for doer, done_to in ((one, other), (other, one)):
                    sentence = f"the {doer} {verb} the {done_to}"
                    rows[split].append(f"{doer}\t{sentence}" if classes else f"{sentence}\t{doer}")
    folder = scratch(f"sentences {seed} {classes}")
    for split, lines in rows.items():
        path = folder / f"{split}.tsv"
        if not path.exists():
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = {split: str(folder / f"{split}.tsv") for split in rows}
    kind = "classification" if classes else "translation"
    return {"type": kind, **files, "tokenizer": {"kind": "words"}, "batch_tokens": 7 * batch, "max_length": 16}
