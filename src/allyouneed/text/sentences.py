"""Sentences of a text: models trained on single sentences translate a longer text sentence by sentence.

A piece is one sentence, or as many as a training line of the model held. Pieces are translated on their own. What they
become is joined with the whitespace that was between them.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

import sentencex

Sentences = Literal["auto", "always", "never"]  # auto: unless the model was trained on such texts
WINDOW = 2000  # characters of a long text that are read at once
USUAL = 0.05  # a number of sentences is usual if this share of the training lines has it, or more
# Languages that are written without blanks between sentences.
_WITHOUT_BLANKS = frozenset({"bo", "ja", "km", "lo", "my", "th", "yue", "zh"})
_BLANK = re.compile(r"[^\S\n]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def split_sentences(text: str, language: str | None = None) -> list[str]:
    """Return the sentences of a text, each with the whitespace after it; joined, they are the text.

    Whitespace before the first sentence is part of it.
    """
    # The library fails at wide blanks in some places. Both replacements keep the number of characters.
    plain = _BLANK.sub(" ", _SURROGATE.sub("x", text))
    found: list[str] = []
    start = 0
    for end in _ends(plain, _primary(language)):
        if found and not (text[start:end].strip() and found[-1].strip()):  # no sentence consists of whitespace
            found[-1] += text[start:end]
        else:
            found.append(text[start:end])
        start = end
    return found


def _ends(text: str, language: str) -> Iterator[int]:
    """Yield where each sentence ends.

    The library holds the interpreter's lock, and 20,000 quotation marks take 0.1 seconds. So a long text is read in
    windows. The sentences that end in the first half of a window are kept, and the next window starts after them.
    """
    start = 0
    while start < len(text):
        window = text[start : start + WINDOW]
        if start + WINDOW < len(text) and window.count('"') % 2 and window.rindex('"') > WINDOW // 2:
            window = window[: window.rindex('"')]  # half a quotation would change where all others are found
        ends = list(accumulate(map(len, sentencex.segment(language, window)), initial=start))[1:]
        if start + WINDOW < len(text):
            if len(ends) == 1:  # a sentence longer than a window: its end is in a later one
                start += WINDOW // 2
                continue
            ends = [end for end in ends if end <= start + WINDOW // 2] or ends[:1]
        yield from ends
        start = ends[-1]


def _primary(language: str | None) -> str:
    """Return the language without region or script: en for en-US. The rules for English are the default."""
    return re.split("[-_]", language, maxsplit=1)[0].lower() if language else "en"


@dataclass(frozen=True)
class Split:
    """A text in pieces, and the whitespace between them."""

    pieces: tuple[str, ...]
    gaps: tuple[str, ...] = ()  # one less than pieces

    def join(self, translated: Sequence[str]) -> str:
        """Return the translations of the pieces as one text."""
        gaps = [*self.gaps, ""]
        return "".join(text + gap for text, gap in zip(translated, gaps, strict=True))


class SentenceSplitter:
    """A splitter of source texts into pieces of at most `most` sentences; None: texts stay whole."""

    def __init__(self, most: int | None, languages: tuple[str, str] | None = None) -> None:
        self.most = most
        self._source = languages[0] if languages else None
        target = languages[1] if languages else None
        self.between = "" if _primary(target) in _WITHOUT_BLANKS else " "  # where the source has no blank

    def split(self, text: str) -> Split:
        """Return a text in pieces. A text that stays whole is not changed at all."""
        spans = self.spans(text)
        if len(spans) == 1:
            return Split((text,))
        gaps = [text[end:start] or self.between for (_, end), (start, _) in pairwise(spans)]
        return Split(tuple(text[start:end] for start, end in spans), tuple(gaps))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where the pieces of a text are, without the blanks between them."""
        sentences = split_sentences(text, self._source) if self.most is not None else []
        if self.most is None or len(sentences) <= self.most:
            return [(0, len(text))]
        found, start = [], 0
        for at in range(0, len(sentences), self.most):
            group = "".join(sentences[at : at + self.most])
            before = len(group) - len(group.lstrip())
            found.append((start + before, start + len(group.rstrip())))
            start += len(group)
        return found

    def split_lines(self, text: str) -> Split:
        """Return a text of several lines in pieces. No piece is longer than a line, and blank lines become gaps."""
        if self.most is None or not text.strip():
            return Split((text,))
        pieces, gaps, gap = list[str](), list[str](), ""
        for line in text.splitlines(keepends=True):
            content = line.splitlines()[0]
            if content.strip():
                split = self.split(content)
                gaps += [gap, *split.gaps]
                pieces += split.pieces
                gap = ""
            gap += line[len(content) :]
        return Split(tuple(pieces), tuple(gaps[1:]))


class SentenceCounter:
    """A count of the sentences of training lines, from which `usual` decides how many a model reads at once."""

    def __init__(self, language: str | None = None) -> None:
        self._language, self._lines = language, Counter[int]()

    def add(self, text: str) -> None:
        """Count the sentences of a line."""
        self._lines[len(split_sentences(text, self._language))] += 1

    def usual(self) -> int:
        """Return the largest number of sentences that at least the share `USUAL` of the lines has or exceeds."""
        total, above, usual = self._lines.total(), 0, 1
        for count in sorted(self._lines, reverse=True):
            above += self._lines[count]
            if above >= USUAL * total:
                usual = max(1, count)
                break
        return usual
