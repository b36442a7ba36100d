"""Alignment error rate of `translate --align` on number words, which make their own gold.

    python benchmarks/alignment_error.py runs/de de        # parts of German words: ein und vierzig
    python benchmarks/alignment_error.py runs/fr fr        # words between blanks: quarante et un

Digits, hundreds and thousands of both languages correspond, so their words are linked. "and", "und" and "et" may be
linked with anything (possible links). With links A, sure links S and possible links P (Och and Ney 2003):

    AER = 1 - (|A & S| + |A & P|) / (|A| + |S|)

Each layer is measured, and the mean of the upper half, which `align` uses: with one link for each target word, and with
links in both directions.
"""

import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from allyouneed.decode import align as aligning
from allyouneed.folder import load_folder
from allyouneed.tasks.numbers import number_words

Part = tuple[str, frozenset[str]]  # a part of a number, and the digits that it states
NUMBERS = 200


def parts_en(number: int) -> Iterator[Part]:
    """Yield the words of an English number; a hyphen separates parts of a word."""

    def group(value: int, name: str, first: bool) -> Iterator[Part]:
        hundreds, rest = divmod(value, 100)
        if hundreds:
            yield number_words(hundreds, "en"), frozenset({f"{name}h"})
            yield "hundred", frozenset({f"{name}H"})
        if rest and (hundreds or not first):
            yield "and", frozenset()
        tens, ones = divmod(rest, 10)
        if rest >= 20:
            yield number_words(10 * tens, "en") + ("-" if ones else ""), frozenset({f"{name}t"})
        if rest >= 20 and ones:
            yield number_words(ones, "en"), frozenset({f"{name}o"})
        if 0 < rest < 20:
            yield number_words(rest, "en"), frozenset({f"{name}o"} | ({f"{name}t"} if rest > 9 else set()))

    thousands, rest = divmod(number, 1000)
    if thousands:
        yield from group(thousands, "k", True)
        yield "thousand", frozenset("K")
    yield from group(rest, "", not thousands)


def parts_de(number: int) -> Iterator[Part]:
    """Yield the parts of a German number."""

    def digit(value: int, last: bool) -> str:
        return "ein" if value == 1 and not last else number_words(value, "de")

    def group(value: int, name: str, last: bool) -> Iterator[Part]:
        hundreds, rest = divmod(value, 100)
        if hundreds:
            yield digit(hundreds, False), frozenset({f"{name}h"})
            yield "hundert", frozenset({f"{name}H"})
        tens, ones = divmod(rest, 10)
        if rest >= 20 and ones:
            yield digit(ones, False), frozenset({f"{name}o"})
            yield "und", frozenset()
        if rest >= 20:
            yield number_words(10 * tens, "de"), frozenset({f"{name}t"})
        if 0 < rest < 20:
            yield digit(rest, last), frozenset({f"{name}o"} | ({f"{name}t"} if rest > 9 else set()))

    thousands, rest = divmod(number, 1000)
    if thousands:
        yield from group(thousands, "k", False)
        yield "tausend", frozenset("K")
    yield from group(rest, "", True)


def parts_fr(number: int) -> Iterator[Part]:
    """Yield the words of a French number."""

    def group(value: int, name: str) -> Iterator[Part]:
        hundreds, rest = divmod(value, 100)
        if hundreds > 1:
            yield number_words(hundreds, "fr"), frozenset({f"{name}h"})
        if hundreds:
            many = "cents" if hundreds > 1 and not rest and not name else "cent"
            yield many, frozenset({f"{name}H"} | ({f"{name}h"} if hundreds == 1 else set()))
        words = number_words(rest, "fr").split() if rest else []
        words = [word.removesuffix("s") if name and word == "quatre-vingts" else word for word in words]
        tens, ones = {f"{name}t"}, {f"{name}o"}
        for word in words:
            if word == "et":
                yield word, frozenset()
            elif len(words) == 3:  # vingt et un, soixante et onze
                yield word, frozenset(tens if word == words[0] else ones if rest % 20 == 1 else tens | ones)
            else:
                yield word, frozenset((tens if rest > 9 else set()) | (ones if rest < 20 or rest % 10 else set()))

    thousands, rest = divmod(number, 1000)
    if thousands > 1:
        yield from group(thousands, "k")
    if thousands:
        yield "mille", frozenset({"K"} | ({"ko"} if thousands == 1 else set()))
    yield from group(rest, "")


def joined(parts: Sequence[Part], blank: str) -> tuple[str, list[tuple[int, int]]]:
    """Return parts as a text, and the place of each. A hyphen at the end of a part joins it to the next."""
    text, spans = "", []
    for word, _ in parts:
        text += "" if not text or text.endswith("-") else blank
        spans.append((len(text), len(text) + len(word.rstrip("-"))))
        text += word
    return text, spans


def between_blanks(
    text: str, spans: Sequence[tuple[int, int]], parts: Sequence[Part]
) -> list[tuple[int, int, set[str]]]:
    """Return the words between blanks with the digits of all their parts."""
    return [
        (*match.span(), set().union(*(tags for (start, end), (_, tags) in zip(spans, parts, strict=True)
                                      if start < match.end() and match.start() < end)))
        for match in re.finditer(r"\S+", text)
    ]  # fmt: skip


def links_of(weights_JI: Tensor, both: bool) -> set[tuple[int, int]]:
    """Return the links in both directions, or only that of each target word."""
    return set(aligning.links(weights_JI)) if both else {(int(row.argmax()), j) for j, row in enumerate(weights_JI)}


def error_rate(cases: Sequence[tuple[set[tuple[int, int]], list[set[str]], list[set[str]]]]) -> float:
    """Return the AER of links, given the digits of each source and target word."""
    hits = size = 0
    for found, source, target in cases:
        pairs = [(i, j) for i in range(len(source)) for j in range(len(target))]
        sure = {(i, j) for i, j in pairs if source[i] & target[j]}
        possible = sure | {(i, j) for i, j in pairs if not source[i] or not target[j]}
        hits += len(found & sure) + len(found & possible)
        size += len(found) + len(sure)
    return 1 - hits / size


def measure(folder: str, language: str, layer: int | None) -> tuple[float, float]:
    """Return the AER of a layer, or of those that `align` uses: with links of target words, and in both directions."""
    bundle, pick = load_folder(folder), random.Random(5)
    parts_of, blank = {"de": (parts_de, ""), "fr": (parts_fr, " ")}[language]
    cases: dict[bool, list[tuple[set[tuple[int, int]], list[set[str]], list[set[str]]]]] = {False: [], True: []}
    for number in (pick.randrange(21, 1_000_000) for _ in range(NUMBERS)):
        ours, theirs = list(parts_en(number)), list(parts_of(number))
        (source, source_spans), (target, target_spans) = joined(ours, " "), joined(theirs, blank)
        assert (source, target) == (number_words(number, "en"), number_words(number, language)), (source, target)
        if language == "de":
            left = [(*span, set(tags)) for span, (_, tags) in zip(source_spans, ours, strict=True)]
            right = [(*span, set(tags)) for span, (_, tags) in zip(target_spans, theirs, strict=True)]
        else:
            left, right = between_blanks(source, source_spans, ours), between_blanks(target, target_spans, theirs)
        item = (source, [(a, b) for a, b, _ in left], target, [(a, b) for a, b, _ in right])
        (weights_JI,) = aligning.align(bundle.model, bundle.codec, [item], layer)
        assert weights_JI is not None
        for both in cases:
            cases[both].append((links_of(weights_JI, both), [tags for *_, tags in left], [tags for *_, tags in right]))
    return error_rate(cases[False]), error_rate(cases[True])


def main() -> None:
    """Print a line for each choice of layers."""
    folder, language = sys.argv[1:3]
    layers = load_folder(folder).recipe["model"]["decoder_layers"]
    torch.set_num_threads(1)
    for layer in (None, *range(layers)):
        name = "upper half" if layer is None else f"layer {layer + 1}"
        one, both = measure(folder, language, layer)
        print(f"{name:20} AER {one:.3f} for target words, {both:.3f} in both directions", flush=True)


if __name__ == "__main__":
    main()
