"""Capitals and title case: rules of languages, what must stay, and scripts without case."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.tasks.letter_case import has_case, in_capitals, in_title_case

WORDS = st.lists(st.text(string.ascii_lowercase + "äöüéčœøñşβд", min_size=1, max_size=6), min_size=1, max_size=6)


@given(words=WORDS)
def test_words_are_as_python_writes_them(words: list[str]) -> None:
    text = " ".join(words)
    assert in_capitals(text) == text.upper()
    assert in_title_case(text) == string.capwords(text)
    assert in_title_case(text, headline=True).lower() == text


@given(text=st.text(max_size=40))
def test_any_text_has_both_and_they_are_stable(text: str) -> None:
    for change in (in_capitals, in_title_case):
        if has_case(text):
            assert change(change(text)) == change(text)
        else:
            assert change(text) == text


@pytest.mark.parametrize(
    ("language", "text", "capitals", "title"),
    [
        ("de", "die straße draußen", "DIE STRASSE DRAUSSEN", "Die Straße Draußen"),
        ("tr", "istanbul'da ılık ilk", "İSTANBUL'DA ILIK İLK", "İstanbul'da Ilık İlk"),
        ("en", "istanbul", "ISTANBUL", "Istanbul"),
        ("nl", "het ijs", "HET IJS", "Het IJs"),
        ("fr", "l’école d'été", "L’ÉCOLE D'ÉTÉ", "L’école D'été"),
        ("en", "it's 'a well-known' 3rd iPhone", "IT'S 'A WELL-KNOWN' 3RD IPHONE", "It's 'A Well-Known' 3rd iPhone"),
        (None, "e\u0301cole", "E\u0301COLE", "E\u0301cole"),
        ("ru", "две собаки", "ДВЕ СОБАКИ", "Две Собаки"),
        # Greek: as ICU's tests of its capitals (TestGreekUpper).
        ("el", "Πατάτα, Αέρας, Μυστήριο", "ΠΑΤΑΤΑ, ΑΕΡΑΣ, ΜΥΣΤΗΡΙΟ", "Πατάτα, Αέρας, Μυστήριο"),
        ("el", "Μαΐου, Πόρος, Ρύθμιση", "ΜΑΪΟΥ, ΠΟΡΟΣ, ΡΥΘΜΙΣΗ", "Μαΐου, Πόρος, Ρύθμιση"),
        ("el", "Τηρώ, Μάιος", "ΤΗΡΩ, ΜΑΪΟΣ", "Τηρώ, Μάιος"),
        ("el", "άυλος", "ΑΫΛΟΣ", "Άυλος"),
        ("el", "άκλιτα ρήματα ή η άκλιτες", "ΑΚΛΙΤΑ ΡΗΜΑΤΑ Ή Η ΑΚΛΙΤΕΣ", "Άκλιτα Ρήματα Ή Η Άκλιτες"),
        ("el", "ᾳ ὁ", "ΑΙ Ο", "ᾼ Ὁ"),
    ],
)
def test_rules_of_languages(language: str | None, text: str, capitals: str, title: str) -> None:
    assert in_capitals(text, language) == capitals
    assert in_title_case(text, language) == title


@pytest.mark.parametrize(
    "text",
    ["两只狗在雪地里玩", "我用 iphone 手机", "手机 iphone", "كلبان", "ქართული ენა", "दो कुत्ते", "犬2匹", "12 %", ""],
)
def test_scripts_without_case_stay(text: str) -> None:
    assert not has_case(text)
    assert in_capitals(text) == in_title_case(text) == text


@pytest.mark.parametrize(
    "kept", ["{name}", "%s", "%(count)d", "&amp;", '<a href="x">', "</b>", "https://a.org/b", "x@b.org"]
)
def test_placeholders_tags_and_addresses_stay(kept: str) -> None:
    assert in_capitals(f"press {kept} now") == f"PRESS {kept} NOW"
    assert in_title_case(f"press {kept} now") == f"Press {kept} Now"


def test_a_name_of_another_script_does_not_change_what_a_text_is() -> None:
    assert in_capitals("the word 中国 means China") == "THE WORD 中国 MEANS CHINA"
    assert in_capitals("a length of 5 µm") == "A LENGTH OF 5 µM"
    assert in_title_case("µm is a unit") == "µm Is A Unit"


@pytest.mark.parametrize(
    ("text", "headline"),
    [
        ("a man of the year and his dog", "A Man of the Year and His Dog"),
        ("what he looks for", "What He Looks For"),
        ("the news: a dog in the snow", "The News: A Dog in the Snow"),
        ("black-and-white photo in Off", "Black-and-White Photo in Off"),
    ],
)
def test_headlines_keep_small_words(text: str, headline: str) -> None:
    assert in_title_case(text, "en", headline=True) == headline
