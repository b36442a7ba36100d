"""Held-out rows that are in the training data, too: scores on them state what was learned by heart.

Exact copies only, by 64-bit hashes; training rows are looked up while they are encoded. `allyouneed data check
--held-out` also finds near-copies.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from allyouneed.text.fingerprints import Hashes, fingerprints
from allyouneed.text.lines import Pair, Skips, filled
from allyouneed.words import counted

Shared = dict[str, list[int]]  # the hashes of training rows that each held-out split has, too


class Overlap:
    """The rows of held-out splits, without those that have an empty side. They are read when they are needed."""

    def __init__(self, splits: Mapping[str, Callable[[], Iterator[Pair] | None]]) -> None:
        self._splits = splits

    @cached_property
    def _hashes(self) -> dict[str, Hashes]:
        rows = {split: filled(read() or iter(()), Skips(split)) for split, read in self._splits.items()}
        found = {split: np.sort(fingerprints(some)) for split, some in rows.items()}
        return {split: hashes for split, hashes in found.items() if len(hashes)}

    def shared(self, rows: Iterable[Sequence[str]]) -> Shared:
        """Return what the held-out splits share with these training rows."""
        values = fingerprints(rows if self._hashes else ())
        shared = {}
        for split, hashes in self._hashes.items():
            first = np.searchsorted(hashes, values)
            same = values[hashes[np.minimum(first, len(hashes) - 1)] == values]
            if len(same):
                shared[split] = np.unique(same).tolist()
        return shared

    def notes(self, parts: Iterable[Shared], noun: str) -> list[str]:
        """Return a line for each split that shares rows with the parts of the training data: how many of its rows."""
        shared = join_shared(parts)
        return [
            f"{split}: {int(np.isin(hashes, np.array(shared[split], np.uint64)).sum()):,} "
            f"of {counted(len(hashes), noun)} also in train"
            for split, hashes in (self._hashes if shared else {}).items()
            if split in shared
        ]


def join_shared(parts: Iterable[Shared]) -> Shared:
    """Return what several parts of the training data share with the held-out splits."""
    found: dict[str, set[int]] = {}
    for part in parts:
        for split, hashes in part.items():
            found.setdefault(split, set()).update(hashes)
    return {split: sorted(hashes) for split, hashes in found.items()}
