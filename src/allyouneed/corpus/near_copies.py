"""Rows that are nearly the same as held-out ones, by MinHash of their first side (source or text).

The held-out rows are in memory: their texts, and 12 bytes for each band. Candidates that share a band are compared.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from allyouneed.errors import DataError
from allyouneed.text.fingerprints import BANDS, Grams, likeness

MOST_HELD_OUT = 2_000_000  # rows
CHUNK = 2048  # texts whose signatures are computed together
MOST_CANDIDATES = 100  # held-out texts of a band that a text is compared with


class HeldOut:
    """Held-out texts that are searched for near-copies."""

    def __init__(self, texts: Iterable[str], near: float) -> None:
        self._near, self._texts = near, list[str]()
        for text in texts:
            if len(self._texts) == MOST_HELD_OUT:
                raise DataError(f"--held-out: more than {MOST_HELD_OUT:,} rows; give fewer, they are kept in memory")
            self._texts.append(text)
        self.found = np.zeros(len(self._texts), np.bool_)  # the held-out rows that have a near-copy
        keys = [Grams.of(self._texts[at : at + CHUNK]).signatures() for at in range(0, len(self._texts), CHUNK)]
        joined = np.concatenate(keys) if keys else np.zeros((0, BANDS), np.uint64)
        orders = [np.argsort(joined[:, band], kind="stable").astype(np.int32) for band in range(BANDS)]
        self._bands = [(joined[order, band], order) for band, order in enumerate(orders)]

    def __len__(self) -> int:
        return len(self._texts)

    def is_near(self, texts: Sequence[str], grams: Grams) -> list[bool]:
        """Return for each text whether a held-out text is nearly the same; `found` collects these."""
        candidates: dict[int, set[int]] = {}
        for band, keys in enumerate(grams.signatures().T):
            known, order = self._bands[band]
            first, behind = np.searchsorted(known, keys, "left"), np.searchsorted(known, keys, "right")
            for place in np.flatnonzero(first < behind).tolist():
                shared = order[first[place] : min(behind[place], first[place] + MOST_CANDIDATES)]
                candidates.setdefault(place, set()).update(shared.tolist())
        near = [False] * len(texts)
        for place, among in candidates.items():
            for number in among:
                if likeness(texts[place], self._texts[number]) >= self._near:
                    near[place] = True
                    self.found[number] = True
        return near
