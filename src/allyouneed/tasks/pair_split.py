"""A split of prepared pairs: ids of both sides on disk, and batches of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from allyouneed.tasks.base import Batch
from allyouneed.tasks.batching import Batches
from allyouneed.tasks.collate import pair_batch
from allyouneed.tasks.corpus_tags import RowTags
from allyouneed.tasks.weighting import Share
from allyouneed.text.bpe_dropout import SampledIds
from allyouneed.text.codec import Codec
from allyouneed.text.ragged import Array, Ragged, dtype_for

SIDES = ("source", "target")


@dataclass(frozen=True)
class Mixture:
    """How corpora are mixed in training: how often each is read, and the tags of their sources."""

    shares: Sequence[Share] = ()
    tags: RowTags | None = None


class PairSplit:
    """The pairs of a split. `dropouts`: of BPE, on both sides. `longest`: tokens of a text, EOS included."""

    def __init__(
        self,
        folder: Path,
        split: str,
        codec: Codec,
        dropouts: Sequence[float],
        longest: int,
        budget: int,
        mixture: Mixture,
    ) -> None:
        self._sides: list[StoredIds | SampledIds] = []
        self._resampled, self._framing, self._prefix = False, codec.framing, codec.target_start
        for side, tokenizer, dropout in zip(SIDES, codec.both(), dropouts, strict=True):
            name, dtype = f"{split}.{side}", dtype_for(tokenizer.size)
            if split == "train" and dropout:
                more = 1 + (mixture.tags is not None and side == SIDES[0])  # EOS, a tag
                self._sides.append(SampledIds(folder, name, dtype, longest - more))
                self._resampled = True
            else:
                self._sides.append(StoredIds(folder, name, dtype))
        self.texts = [Ragged(folder, f"{split}.{side}.text", "u1") for side in SIDES] if split != "train" else []
        self._budget, self._shares, self._tags = budget, mixture.shares, mixture.tags

    @cached_property
    def batches(self) -> Batches:
        """The batches of the split."""
        return Batches(self._lengths(0, 0), self._budget, self._lengths if self._resampled else None, self._shares)

    def _lengths(self, seed: int, epoch: int) -> tuple[Array, Array]:
        more = (sum(map(len, self._framing)), 1 + len(self._prefix))
        source, target = (side.lengths(seed, epoch, n, more=more[n]) for n, side in enumerate(self._sides))
        return source if self._tags is None else self._tags.lengthened(source), target

    def batch(self, members: Array, seed: int, epoch: int) -> Batch:
        """Return some pairs as a batch."""
        source, target = (side.rows(members, seed, epoch, number) for number, side in enumerate(self._sides))
        if self._tags is not None:
            source = self._tags.added(source, members)
        return pair_batch(source, target, self._framing, self._prefix)


class StoredIds:
    """Ids that are the same in each epoch: the interface of SampledIds, without sampling."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self._ids = Ragged(folder, name, dtype)

    def lengths(self, *address: int, more: int = 0) -> Array:
        """Return the length of each example, plus `more`."""
        return self._ids.short_lengths(more)

    def rows(self, members: Array, *address: int) -> list[Array]:
        """Return the ids of some examples."""
        return [self._ids[member] for member in members.tolist()]
