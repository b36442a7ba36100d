"""Which words of a text a vocabulary cannot represent."""

import pytest

from allyouneed.text.checks import unknown_words
from allyouneed.text.tokenizer import TokenizerConfig, of_symbols, train

TEXTS = [
    "seven hundred and forty dogs, two cats",
    "one thousand and fifty birds",
    "nine hundred cats and two birds",
] * 9


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("words", ["Hello,", "zebras", "übung", "xyzzy", "🙂"]),
        ("characters", ["Hello,", "zebras", "übung", "xyzzy", "🙂"]),
        ("bpe", ["Hello", "zebras", "übung", "xyzzy"]),  # a pictogram has no letters
        ("bytes", []),
    ],
)
def test_unknown_words(kind: str, wanted: list[str]) -> None:
    tokenizer = train(TEXTS, TokenizerConfig(kind=kind, size=400))
    assert unknown_words(tokenizer, "seven hundred\tcats and\n two  dogs, cats") == []
    assert unknown_words(tokenizer, "Hello, two zebras and übung xyzzy 🙂 xyzzy") == wanted
    assert unknown_words(tokenizer, "") == unknown_words(tokenizer, " \n") == []


def test_short_words_are_not_spelled() -> None:
    tokenizer = train(TEXTS, TokenizerConfig(kind="bpe", size=400))
    assert unknown_words(tokenizer, "xyz q. w/x") == []


def test_tokens_that_cover_several_characters() -> None:
    assert unknown_words(of_symbols(["one", "two"], "words"), "one-two one-six") == ["one-two", "one-six"]
    assert unknown_words(of_symbols(["one", "two", "-"], "words"), "one two") == []
