"""Required phrases as text: whatever the tokeniser and the model, outputs contain them as whole words."""

import re

import pytest
import torch
from decode_models import make_model

from allyouneed.decode import SearchConfig, translate
from allyouneed.decode.phrases import MOST_REQUIRED, MOST_VARIED, begins_word, encode_constraint
from allyouneed.errors import ConfigError, DataError
from allyouneed.text.codec import Codec
from allyouneed.text.glossary import Constraint, RequiredPhrase
from allyouneed.text.tokenizer import Kind, Tokenizer, TokenizerConfig, of_symbols, train

TEXTS = ["ein großer Hund läuft", "der Hund, die Hundehütte", "ein Haus und ein Hund.", "Häuser laufen (nie)"] * 20
KINDS: tuple[Kind, ...] = ("bpe", "unigram", "characters", "bytes", "words")


def tokenizer_of(kind: Kind) -> Tokenizer:
    return train(TEXTS, TokenizerConfig(kind=kind, size=300))


def has_word(text: str, phrase: str) -> bool:
    start = re.match(rf"{re.escape(phrase[0].upper() + phrase[1:])}(?!\w)", text)
    return bool(start or re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text))


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_contain_whole_words(kind: Kind) -> None:
    torch.manual_seed(1)
    tokenizer = tokenizer_of(kind)
    model, codec = make_model("encoder-decoder", tokenizer.size, 2.0), Codec(source=tokenizer, target=tokenizer)
    wanted = [["Hund"], ["ein Haus", "die Hundehütte"], ["läuft", "und", "Hund"]]
    constraints = [Constraint(tuple(RequiredPhrase((text,)) for text in texts), "der") for texts in wanted]
    found = translate(model, codec, TEXTS[:3], SearchConfig(beam=2, max_length=50), constraints=constraints)
    for texts, (answer, *_) in zip(wanted, found, strict=True):
        assert answer.text.startswith("der")
        assert all(has_word(answer.text, text) for text in texts), (texts, answer.text)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_continue_a_word(kind: Kind) -> None:
    tokenizer = tokenizer_of(kind)
    begins = begins_word(tokenizer)
    ids = tokenizer.encode("Hund, Haus")
    text, first = "", []
    for place in range(len(ids)):
        before, text = text, tokenizer.decode(ids[: place + 1])
        first.append(not before or not text[len(before) : len(before) + 1].isalnum())
    assert begins[torch.tensor(ids[1:])].tolist() == first[1:]


def test_one_of_several_alternatives_and_a_capital_at_the_start() -> None:
    tokenizer = tokenizer_of("characters")
    phrase = encode_constraint(tokenizer, Constraint((RequiredPhrase(("laufen", "Häuser"), 2),))).phrases[0]
    assert (phrase.count, phrase.whole) == (2, True)
    written = {tokenizer.decode([token for token in one if token >= 0]) for one in phrase.variants}
    assert {" laufen", " Häuser", "laufen", "Häuser"} <= written


def test_phrases_that_cannot_be_written_are_left_out() -> None:
    tokenizer = of_symbols("abc", "characters")
    assert encode_constraint(tokenizer, Constraint((RequiredPhrase(("xyz",)),))).phrases == ()


def test_too_many_tokens_are_refused() -> None:
    phrases = tuple(RequiredPhrase((f"{number:0100}",)) for number in range(3))
    with pytest.raises(DataError, match=rf"need \d+ tokens; at most {MOST_REQUIRED}"):
        encode_constraint(tokenizer_of("bytes"), Constraint(phrases))


def test_too_many_targets_of_a_term_are_refused() -> None:
    alternatives = tuple(f"{number:050}" for number in range(20))
    with pytest.raises(DataError, match=rf"have \d,\d+ tokens in all forms; at most {MOST_VARIED:,}"):
        encode_constraint(tokenizer_of("bytes"), Constraint((RequiredPhrase(alternatives),)))


def test_a_classifier_refuses_constraints() -> None:
    tokenizer = of_symbols("abc", "characters")
    codec = Codec(source=tokenizer, classes=("x", "y"))
    with pytest.raises(ConfigError, match="a classifier has no outputs to constrain"):
        translate(make_model("decoder", 9), codec, ["a"], SearchConfig(), constraints=[Constraint(prefix="a")])
