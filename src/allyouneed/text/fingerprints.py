"""Numbers that stand for texts: 64-bit hashes of rows, hashed n-grams, and MinHash signatures.

All are the same in every process. Work on many texts is done in numpy arrays: one window of `WINDOW` bytes for each
place of the joined texts.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

WINDOW = 4  # bytes of an n-gram
BANDS, ROWS = 10, 3  # of a signature: texts whose n-grams agree to 0.8 share a band in 99.9 % of the cases
Hashes = NDArray[np.uint64]
_EVERY = np.uint32(0xFFFFFFFF)
_RANDOM = np.random.default_rng(20240229)
_XOR = _RANDOM.integers(0, 1 << 32, BANDS * ROWS, dtype=np.uint32)
_TIMES = _RANDOM.integers(0, 1 << 32, BANDS * ROWS, dtype=np.uint32) | np.uint32(1)


def plain(text: str) -> str:
    """Return a text in NFC with single blanks: texts that differ in these only are the same."""
    text = " ".join(text.split())
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def fingerprint(texts: Sequence[str]) -> int:
    """Return a 64-bit hash of the texts of a row."""
    joined = "\n".join([plain(text) for text in texts]).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(joined, digest_size=8).digest(), "little")


def fingerprints(rows: Iterable[Sequence[str]]) -> Hashes:
    """Return the hash of each row."""
    return np.fromiter((fingerprint(row) for row in rows), np.uint64)


@dataclass(frozen=True)
class Grams:
    """The n-grams of several texts: hashed windows, in the order of the texts. Letters are casefolded."""

    hashes: NDArray[np.uint32]
    real: NDArray[np.bool_]  # False for windows that contain the end of a text
    starts: NDArray[np.int64]  # the first window of each text

    @staticmethod
    def of(texts: Sequence[str]) -> "Grams":
        """Return the n-grams of texts; each text has one or more."""
        parts = [f" {plain(text).casefold()} ".encode("utf-8", "surrogatepass").ljust(WINDOW) for text in texts]
        ends = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
        raw = np.frombuffer(b"".join([*parts, b" " * (WINDOW - 1)]), np.uint8).astype(np.uint32)
        count = len(raw) - WINDOW + 1
        hashes = raw[:count].copy()
        for place in range(1, WINDOW):
            hashes |= raw[place : count + place] << np.uint32(8 * place)
        hashes ^= hashes >> np.uint32(16)  # the first steps of MurmurHash3's finaliser
        hashes *= np.uint32(0x85EBCA6B)
        hashes ^= hashes >> np.uint32(13)
        real = np.ones(count, np.bool_)
        for place in range(1, WINDOW):
            real[ends - place] = False
        return Grams(hashes, real, np.concatenate([np.zeros(1, np.int64), ends[:-1]]))

    def counts(self) -> NDArray[np.float64]:
        """Return how many n-grams each text has."""
        return np.add.reduceat(self.real.astype(np.float64), self.starts)

    def signatures(self) -> Hashes:
        """Return a hash for each text and band of its MinHash signature."""
        least = np.empty((len(self.starts), BANDS * ROWS), np.uint64)
        for number, (mask, factor) in enumerate(zip(_XOR, _TIMES, strict=True)):
            values = np.where(self.real, (self.hashes ^ mask) * factor, _EVERY)
            least[:, number] = np.minimum.reduceat(values, self.starts)
        bands = least.reshape(len(least), BANDS, ROWS)
        mixed = np.zeros((len(least), BANDS), np.uint64)
        for row in range(ROWS):
            mixed = (mixed ^ bands[:, :, row]) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        return mixed


def likeness(one: str, other: str) -> float:
    """Return the share of n-grams that two texts have in common (Jaccard)."""
    ours, theirs = _windows(one), _windows(other)
    return len(ours & theirs) / len(ours | theirs)


def _windows(text: str) -> set[bytes]:
    raw = f" {plain(text).casefold()} ".encode("utf-8", "surrogatepass").ljust(WINDOW)
    return {raw[place : place + WINDOW] for place in range(len(raw) - WINDOW + 1)}
