"""Held-out rows that are in the training data, too: scores on them state what was learned by heart.

Exact copies only, by 64-bit hashes: one more pass over the training data. `allyouneed data check --held-out` also finds
near-copies.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from allyouneed.text.fingerprints import fingerprints
from allyouneed.words import counted

ROWS = 4096  # whose hashes are looked up together


def overlap_notes(
    train: Iterable[Sequence[str]], held_out: Mapping[str, Iterable[Sequence[str]]], noun: str
) -> list[str]:
    """Return a line for each held-out split that shares rows with the training data: how many of them."""
    hashes = {split: np.sort(fingerprints(rows)) for split, rows in held_out.items()}
    hashes = {split: found for split, found in hashes.items() if len(found)}
    seen = {split: np.zeros(len(found), np.bool_) for split, found in hashes.items()}
    for part in _parts(train if hashes else ()):
        values = fingerprints(part)
        for split, found in hashes.items():
            first = np.searchsorted(found, values)
            shared = np.unique(values[found[np.minimum(first, len(found) - 1)] == values])
            seen[split] |= np.isin(found, shared) if len(shared) else False
    return [
        f"{split}: {int(marks.sum()):,} of {counted(len(marks), noun)} also in train"
        for split, marks in seen.items()
        if marks.any()
    ]


def _parts(rows: Iterable[Sequence[str]]) -> Iterator[list[Sequence[str]]]:
    source = iter(rows)
    while part := list(islice(source, ROWS)):
        yield part
