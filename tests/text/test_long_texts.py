"""Long texts: encoded in pieces, they have the ids of the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.text import long_texts
from allyouneed.text.long_texts import cut, encode_long
from allyouneed.text.tokenizer import Kind, Tokenizer, TokenizerConfig, train

WORDS = ["don't", "it's 5 o'clock", "x", "1999", "...", "(a)", "Straße", "日本語", "e\u0301", "🏳️‍🌈", "'", "s", "-"]
BLANKS = [" ", "  ", "\n", "\n\n", " \n", "\n ", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\x1c", "\u200b", ""]
TEXTS = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(BLANKS)), max_size=40).map(
    lambda pairs: "".join(word + blank for word, blank in pairs)
)
SAMPLE = [word + blank + other for word in WORDS for blank in BLANKS for other in WORDS]


def tokenizer_of(kind: Kind, sentences: bool = False) -> Tokenizer:
    return train(SAMPLE, TokenizerConfig(kind=kind, size=500), sentences=sentences)


PIECEWISE = {kind: tokenizer_of(kind) for kind in ("bpe", "unigram", "bytes")}


@pytest.mark.no_shapes
@given(texts=st.lists(TEXTS, max_size=3), piece=st.integers(1, 12))
def test_pieces_have_the_ids_of_the_whole_text(texts: list[str], piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_texts, "PIECE", piece)
        for text in texts:
            assert "".join(cut(text)) == text
        for tokenizer in PIECEWISE.values():
            assert encode_long(tokenizer, texts) == tokenizer.encode_batch(texts)


def test_long_texts_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "some words\n" * 60_000
    pieces = list(cut(text))
    assert len(pieces) == 10
    assert max(map(len, pieces)) < long_texts.PIECE * 1.6
    assert list(cut("x" * 300_000)) == ["x" * 300_000]


@pytest.mark.parametrize("kind", ["characters", "words"])
def test_other_kinds_are_encoded_whole(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "PIECE", 1)
    monkeypatch.setattr(long_texts, "cut", None)
    tokenizer = tokenizer_of(kind)
    assert encode_long(tokenizer, ["a b", "c"]) == tokenizer.encode_batch(["a b", "c"])
    sentences = tokenizer_of("bpe", sentences=True)  # a blank is put before each text
    assert encode_long(sentences, ["a b"]) == [sentences.encode("a b")]
