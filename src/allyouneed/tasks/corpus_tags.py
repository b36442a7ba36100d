"""Tags of corpora: a token in front of each source of a corpus, so that a model can tell it from others.

    source = TAG text EOS    of a corpus with a tag;    source = text EOS    of the others, and of texts to translate

So a model learns from machine-made sources without writing in their manner. A tag is a control symbol of the source's
vocabulary: one token, which no text spells and no output shows. It is not stored with the ids, but added to batches.

Paper: Caswell et al. 2019, arXiv:1906.06442.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from allyouneed.errors import ConfigError
from allyouneed.tasks.weighting import read_counts
from allyouneed.text.codec import Codec
from allyouneed.text.ragged import Array
from allyouneed.text.tokenizer import control_name

Tags = Sequence[str | None]  # of each training corpus


def different(tags: Tags) -> list[str]:
    """Return the tags of all corpora, each once."""
    return list(dict.fromkeys(tag for tag in tags if tag is not None))


def require_known_tags(codec: Codec, tags: Tags) -> None:
    """Raise ConfigError if the vocabulary of a model that is trained on lacks a tag."""
    assert codec.source is not None
    for tag in different(tags):
        if control_name(tag) not in codec.source.vocabulary:
            raise ConfigError(
                f"task.train: tag = {tag!r}: the model has no such token, because none of the corpora that it was "
                "trained on had this tag; remove it"
            )


class RowTags:
    """The tags of the rows of several corpora, which follow each other."""

    def __init__(self, counts: Sequence[int], ids: Sequence[int | None]) -> None:
        self._counts, self._ids, self._ends = counts, ids, np.cumsum(counts)

    @staticmethod
    def load(folder: Path, codec: Codec, tags: Tags) -> "RowTags | None":
        """Return the tags of prepared training data; None if it has none."""
        if not different(tags):
            return None
        assert codec.source is not None
        numbers = codec.source.vocabulary
        return RowTags(read_counts(folder), [None if tag is None else numbers[control_name(tag)] for tag in tags])

    def lengthened(self, lengths: Array) -> Array:
        """Return the lengths of all rows, with their tags."""
        return lengths + np.repeat(np.array([one is not None for one in self._ids], lengths.dtype), self._counts)

    def added(self, rows: Sequence[Array], members: Array) -> list[Array]:
        """Return the ids of some rows with the tag of each in front."""
        found = [self._ids[number] for number in np.searchsorted(self._ends, members, side="right").tolist()]
        return [
            row if tag is None else np.concatenate([np.array([tag], row.dtype), row])
            for row, tag in zip(rows, found, strict=True)
        ]
