"""Sentences of a text: where it is split, what is joined, and what training lines decide."""

from pathlib import Path

import pytest
import sentencex
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.text.sentences import WINDOW, SentenceCounter, SentenceSplitter, split_sentences
from helpers import shared_data

PROSE = "A dog runs. Two men sit on a bench!  Is it cold?\tYes."


def test_sentences_with_their_whitespace() -> None:
    assert split_sentences(PROSE) == ["A dog runs. ", "Two men sit on a bench!  ", "Is it cold?\t", "Yes."]
    assert split_sentences("Dr. Smith paid 3.50 to e.g. Ann. He left.") == [
        "Dr. Smith paid 3.50 to e.g. Ann. ",
        "He left.",
    ]
    assert split_sentences("Am 3. Mai kam er. Es war kalt.", "de-AT") == ["Am 3. Mai kam er. ", "Es war kalt."]
    assert split_sentences("\n\n \n\nA dog. No.") == ["\n\n \n\nA dog. ", "No."]
    assert split_sentences("") == []
    assert split_sentences("forty-one") == ["forty-one"]


@given(
    st.text(st.sampled_from("aZ .?!…\"“”'()«。！？।19\t\n\u00a0\u2028\ud800é\U0001f642-;:*•\0")),
    st.sampled_from(["en", "de", "zh", "xx"]),
)
def test_any_text_is_split_and_joined_exactly(text: str, language: str) -> None:
    assert "".join(split_sentences(text, language)) == text
    split = SentenceSplitter(1, (language, "de")).split(text)
    assert len(split.gaps) == len(split.pieces) - 1
    assert all(piece.strip() for piece in split.pieces) or not text.strip()
    assert "".join(split.join(split.pieces).split()) == "".join(text.split())


@given(st.text(st.sampled_from("aZ .!\t\n\r\u2028")))
def test_lines_are_split_and_joined_exactly(text: str) -> None:
    split = SentenceSplitter(1).split_lines(text)
    assert len(split.gaps) == len(split.pieces) - 1
    assert all(len(piece.splitlines()) == 1 for piece in split.pieces) or not text.strip()
    assert "".join(split.join(split.pieces).split()) == "".join(text.split())


def test_a_line_break_ends_a_piece() -> None:
    split = SentenceSplitter(2).split_lines("\nTitle\r\n \nA dog. A cat. A cow.\n")
    assert split.pieces == ("Title", "A dog. A cat.", "A cow.")
    assert split.gaps == ("\r\n\n", " ")
    assert SentenceSplitter(None).split_lines("One.\nTwo.").pieces == ("One.\nTwo.",)


def test_known_places_where_the_library_fails() -> None:
    """Wide blanks between a capital letter and a period made it panic."""
    assert "".join(split_sentences(" A\u2028. B c.")) == " A\u2028. B c."
    assert "".join(split_sentences("Z\u00a0. 1*")) == "Z\u00a0. 1*"


def test_long_texts_are_read_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library holds the interpreter's lock, so a single call has to be short."""
    sizes: list[int] = []
    segment = sentencex.segment
    monkeypatch.setattr(sentencex, "segment", lambda language, text: sizes.append(len(text)) or segment(language, text))
    for sentence in ("A dog runs. ", 'He said "No. Not now." twice.  ', "word " * 1999 + "end. ", "“" * 20_000):
        text = sentence * max(1, 20_000 // len(sentence))
        assert split_sentences(text) == [sentence] * (len(text) // len(sentence))
    assert max(sizes) <= WINDOW


def test_pieces_of_several_sentences() -> None:
    assert SentenceSplitter(None).split(PROSE).pieces == (PROSE,)
    assert SentenceSplitter(4).split(PROSE).pieces == (PROSE,)
    two = SentenceSplitter(2).split(PROSE)
    assert two.pieces == ("A dog runs. Two men sit on a bench!", "Is it cold?\tYes.")
    assert two.join(["Ein Hund.", "Ja."]) == "Ein Hund.  Ja."


@pytest.mark.parametrize(("target", "joined"), [("en", "Good. And you?"), ("ja", "Good.And you?")])
def test_a_source_without_blanks_between_sentences(target: str, joined: str) -> None:
    split = SentenceSplitter(1, ("zh", target)).split("我很好。你呢？")
    assert split.pieces == ("我很好。", "你呢？")
    assert split.join(["Good.", "And you?"]) == joined


def test_training_lines_decide() -> None:
    counter = SentenceCounter("en")
    for count in [1] * 90 + [2] * 6 + [3] * 4:
        counter.add(" ".join(["A dog runs."] * count))
    assert counter.usual() == 2  # 10 of 100 lines have two or more, 4 have three
    assert SentenceCounter().usual() == 1


def test_captions_are_single_sentences() -> None:
    lines = Path(shared_data("translation", "multi30k", "train.en")).read_text(encoding="utf-8").splitlines()[:4000]
    counter = SentenceCounter("en")
    for line in lines:
        counter.add(line)
    assert counter.usual() == 1
    ended = [line.strip() for line in lines if line.strip().endswith(".")]
    pairs = list(zip(ended[::2], ended[1::2], strict=False))
    right = sum(SentenceSplitter(1, ("en", "de")).split(f"{one} {two}").pieces == (one, two) for one, two in pairs)
    assert right > 0.99 * len(pairs)
