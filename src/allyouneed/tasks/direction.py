"""Do held-out pairs translate in the direction of the training pairs? Swapped files would be trained on silently."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from allyouneed.errors import DataError
from allyouneed.text.lines import Pair

TRAINING_ROWS, HELD_OUT_ROWS = 5000, 500  # at most, from the start
# Shares of held-out words (or characters) that occur in training text of the same side, and of the other side.
CLEAR, TIMES = 0.5, 2.0
FEWEST = 30  # words: fewer decide nothing

Parts = Callable[[str], Iterable[str]]


def require_same_direction(train: Iterator[Pair], held_out: Iterator[Pair], where: str, like: str) -> None:
    """Raise DataError if sources of held-out pairs look like targets of training pairs, and the other way round.

    `where` and `like` name the held-out pairs and the training pairs.

    Words decide, or characters, for languages without blanks. If both sides look alike, nothing is decided.
    """
    known, found = list(islice(train, TRAINING_ROWS)), list(islice(held_out, HELD_OUT_ROWS))
    measures: tuple[Parts, ...] = (lambda text: text.lower().split(), lambda text: text.lower().replace(" ", ""))
    for parts in measures:
        same, other = _shares(known, found, parts)
        if other >= CLEAR and other >= TIMES * same:
            raise DataError(
                f"{where}: source and target are swapped: {same:.0%} of its words are known from the same side of the "
                f"training text, {other:.0%} from the other side; give the sides in the order of {like}"
            )


def _shares(known: list[Pair], found: list[Pair], parts: Parts) -> tuple[float, float]:
    """Return which share of the held-out text occurs on the same side of the training text, and on the other side."""
    sides = [{part for pair in known for part in parts(pair[side])} for side in (0, 1)]
    texts = [[part for pair in found for part in parts(pair[side])] for side in (0, 1)]
    total = sum(map(len, texts))
    if total < FEWEST:
        return 0.0, 0.0
    same = sum(part in sides[side] for side in (0, 1) for part in texts[side])
    other = sum(part in sides[1 - side] for side in (0, 1) for part in texts[side])
    return same / total, other / total
