"""What large corpora need: a sample for tokenisers, and encoding on all cores beside reading and writing."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

from allyouneed.text.compressed import SUFFIXES

# Bytes of text that a tokeniser learns from, about. More text takes minutes, which a kill would lose, and hardly
# changes the pieces.
TOKENIZER_BYTES = 128 << 20
PACKED = 4  # about how much larger a compressed text, or a column of Parquet, is in memory
AHEAD = 2  # chunks that are encoded while others are read and written

T = TypeVar("T")
R = TypeVar("R")


def text_bytes(files: Iterable[Path]) -> int:
    """Return about how many bytes of text files hold, by their sizes."""
    packed = (*SUFFIXES, ".parquet", ".feather")
    return sum(path.stat().st_size * (PACKED if path.name.endswith(packed) else 1) for path in files if path.is_file())


def tokenizer_sample(rows: Iterable[T], size: int) -> Iterator[T]:
    """Yield the rows that a tokeniser learns from: all of a text of `size` bytes, or every n-th of a large one."""
    return islice(rows, 0, None, sample_step(size))


def sample_step(size: int) -> int:
    """Return n: every n-th row of a text of `size` bytes is a sample of at most about 128 MiB."""
    return max(1, -(-size // TOKENIZER_BYTES))


def ahead(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield function(item) of each item, in order. Calls run in threads while items are read and results are used."""
    with ThreadPoolExecutor(AHEAD) as pool:
        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
