"""What an exported model is tried on before anybody trusts it: random ids, and texts of the model's own task."""

import random
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from allyouneed.errors import UserError
from allyouneed.folder import Bundle
from allyouneed.text.codec import Codec
from allyouneed.text.lines import blocks, pairs, resolve
from allyouneed.text.specials import UNK
from allyouneed.words import counted

TEXTS = 16  # of the task
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34)  # of random sequences
LONGEST = 64  # tokens of a text that are looked at
NO_TEXTS = "its task names no file of texts that is here: only random sequences were compared"


def random_rows(size: int, most: int, seed: int = 0) -> list[list[int]]:
    """Sequences of random ids of words, none longer than `most`."""
    numbers = random.Random(seed)
    return [[numbers.randrange(UNK, size) for _ in range(min(length, most))] for length in LENGTHS]


def framed(codec: Codec, ids: Sequence[int]) -> list[int]:
    """The ids of a text between those that a model wants around it."""
    before, behind = codec.framing
    return [*before, *ids, *behind]


def task_texts(bundle: Bundle) -> list[str]:
    """The first texts that the recipe's task was validated with, if they can still be read; of pairs the sources."""
    task = bundle.recipe.get("task")
    files: Any = task.get("valid") or task.get("test") if isinstance(task, dict) else None
    names = [files] if isinstance(files, str) else files
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        return []
    try:
        return [text for text in islice(_texts(list(names), bundle.codec.source is not None), TEXTS) if text.strip()]
    except (UserError, OSError):  # data that is gone, or of another shape: random ids are tried in any case
        return []


def stage_name(texts: Sequence[str]) -> str:
    """What is being done with them."""
    return f"our engine answers {counted(len(texts), 'text')} of the task" if texts else "our engine reads random ids"


def _texts(names: list[str], paired: bool) -> Iterable[str]:
    if paired:
        return (source for source, _ in pairs(names))
    return (line for block in blocks(resolve(names[0])) for line in block.splitlines() if line.strip())
