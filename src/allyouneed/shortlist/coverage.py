"""The coverage of a shortlist: the fraction of target words that it allows, and how many words it allows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from allyouneed.decode import SearchConfig, search
from allyouneed.folder import Bundle
from allyouneed.shortlist.table import Shortlist
from allyouneed.tasks.base import Batch
from allyouneed.text.lines import Pair, Skips, filled
from allyouneed.text.specials import EOS, PAD

CHUNK = 64  # sources whose words are looked up together
TEXTS = 100  # texts of files that the model translates


@dataclass(frozen=True)
class Coverage:
    """How much a shortlist allows."""

    share: float  # the fraction of the words of some targets that is allowed
    words: float  # the number of words that a source allows, on average


def coverage(shortlist: Shortlist, held_out: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Coverage:
    """Measure the coverage of sources and targets without padding. EOS is always allowed and does not count."""
    inside = total = allowed = rows = 0
    remaining = iter(held_out)
    while some := list(islice(remaining, CHUNK)):
        sources, targets = zip(*some, strict=True)
        list_BL, count_B = shortlist.lists(sources)
        for words, count, target in zip(list_BL.tolist(), count_B.tolist(), targets, strict=True):
            known = set(words[:count])
            counted = [word for word in target if word != EOS]
            inside, total = inside + sum(word in known for word in counted), total + len(counted)
        allowed, rows = allowed + int(count_B.sum()), rows + len(some)
    return Coverage(inside / max(1, total), allowed / max(1, rows))


def pairs_of_batches(batches: Iterable[Batch]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the sources and targets of batches, without padding."""
    for batch in batches:
        assert batch.source_BS is not None
        assert batch.output_BT is not None
        for source, target in zip(batch.source_BS.tolist(), batch.output_BT.tolist(), strict=True):
            yield [word for word in source if word != PAD], [word for word in target if word != PAD]


def answer_coverage(shortlist: Shortlist, bundle: Bundle, pairs: Iterator[Pair], longest: int) -> Coverage:
    """Measure the coverage of the model's own answers to the first texts of pairs, decoded among all words.

    A file in another language, or swapped files, give a low coverage.
    """
    texts = [source for source, _ in islice(filled(pairs, Skips("")), TEXTS)]
    sources = bundle.codec.encode_sources(texts)
    sources = [source[:longest] for source in sources]
    found = search(bundle.model, sources, SearchConfig(beam=1))
    return coverage(shortlist, [(source, best[0].ids) for source, best in zip(sources, found, strict=True)])
