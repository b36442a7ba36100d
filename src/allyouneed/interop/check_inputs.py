"""Inputs for checking an exported model: random ids, and texts of the model's own task."""

import random
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from allyouneed.errors import UserError
from allyouneed.folder import Bundle
from allyouneed.text.codec import Codec
from allyouneed.text.corpora import TextCorpus
from allyouneed.text.corpus_settings import pairs, parse_corpora
from allyouneed.text.specials import UNK
from allyouneed.words import counted

TEXTS = 16  # of the task, at most
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34)  # of random sequences
LONGEST = 64  # tokens of a text that are compared
NO_TEXTS = "the files of its task were not found: only random sequences were compared"


def random_rows(size: int, most: int, seed: int = 0) -> list[list[int]]:
    """Return sequences of random token ids, none longer than `most`."""
    numbers = random.Random(seed)
    return [[numbers.randrange(UNK, size) for _ in range(min(length, most))] for length in LENGTHS]


def framed(codec: Codec, ids: Sequence[int]) -> list[int]:
    """Return the ids of a text, framed as the model expects."""
    before, behind = codec.framing
    return [*before, *ids, *behind]


def task_texts(bundle: Bundle) -> list[str]:
    """Return the first texts of the task's validation set, or [] if it cannot be read; of pairs, the sources."""
    task = bundle.recipe.get("task")
    files = task.get("valid") or task.get("test") if isinstance(task, dict) else None
    if not files:
        return []
    try:
        return [text for text in islice(_texts(files, bundle.codec.source is not None), TEXTS) if text.strip()]
    except (UserError, OSError):  # missing or changed data: random ids are compared in any case
        return []


def stage_name(texts: Sequence[str]) -> str:
    """Return the name of the stage in which our engine runs."""
    return (
        f"running our engine on {counted(len(texts), 'text')} of the task"
        if texts
        else "running our engine on random ids"
    )


def _texts(files: Any, paired: bool) -> Iterable[str]:
    if paired:
        return (source for source, _ in pairs(files))
    pieces = (text or "" for corpus in parse_corpora(files, TextCorpus) for text in corpus.documents())
    return (line for piece in pieces for line in piece.splitlines() if line.strip())
