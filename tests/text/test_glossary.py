"""Glossaries: which terms a text has, and files that are refused."""

from pathlib import Path

import pytest

from allyouneed.errors import DataError
from allyouneed.text.glossary import Constraint, Glossary, RequiredPhrase, constraints_of

TERMS = [
    ("dog", "Hund"),
    ("dog house", "Hundehütte"),
    ("sofa", "Sofa", "Couch"),
    ("Git",),
    ("C++", "C++"),
    ("狗", "Hund"),
]


def found(text: str, match_case: bool = False) -> list[tuple[tuple[str, ...], int]]:
    return [(phrase.alternatives, phrase.count) for phrase in Glossary(TERMS, match_case).phrases(text)]


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("A dog, a Dog and dogs.", [(("Hund",), 1)]),  # whole words; a target once
        ("the dog  house of the dog", [(("Hundehütte",), 1), (("Hund",), 1)]),  # the longest term at a place
        ("sofa", [(("Sofa", "Couch"), 1)]),
        ("git and Git, Git", [(("git",), 1), (("Git",), 2)]),  # kept as written, as often as written
        ("use C++, not C", [(("C++",), 1)]),
        ("这狗好", [(("Hund",), 1)]),  # a script without blanks
        ("watchdog dog-like", [(("Hund",), 1)]),
        ("a cat", []),
    ],
)
def test_terms_of_a_text(text: str, phrases: list[tuple[tuple[str, ...], int]]) -> None:
    assert found(text) == phrases


def test_case_can_matter() -> None:
    assert found("Dog git", match_case=True) == []
    assert found("dog Git", match_case=True) == [(("Hund",), 1), (("Git",), 1)]


def test_other_forms_of_the_same_letters_match() -> None:
    assert Glossary([("cafe\u0301", "Kaffee")]).phrases("un café") == (RequiredPhrase(("Kaffee",)),)


def test_a_file_has_comments_and_terms_to_keep(tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("# English\tGerman\n\ndog\tHund\nGit\n", encoding="utf-8")
    glossary = Glossary.read(str(tmp_path / "terms.tsv"))
    assert glossary.targets() == ["Hund", "Git"]
    more = Glossary([("dog", "Köter"), ("cat",)]).over(glossary)
    assert [phrase.alternatives for phrase in more.phrases("dog cat git")] == [("Köter",), ("cat",), ("git",)]
    assert more.targets() == ["Hund", "Git", "Köter", "cat"]
    longer = Glossary([("dog", "Köter")]).over(Glossary([("dog house", "Hundehütte")]))
    assert [phrase.alternatives for phrase in longer.phrases("a dog house, a dog")] == [("Hundehütte",), ("Köter",)]


def test_phrases_occur_as_whole_words() -> None:
    phrase = RequiredPhrase(("kleiner Hund", "Köter"))
    assert phrase.occurs_in("ein kleiner Hund, ja")
    assert phrase.occurs_in("Kleiner Hund")
    assert phrase.occurs_in("(Köter)")
    assert not phrase.occurs_in("ein Kleiner Hund")
    assert not phrase.occurs_in("ein kleiner Hundert")
    assert RequiredPhrase(("犬",)).occurs_in("大犬小")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no terms; a line should hold a source term"),
        ("# only\n", "no terms"),
        ("dog\t\n", r"line 1: an empty term"),
        ("dog\tHund\n\tHund\n", r"line 2: an empty term"),
        ("dog\tHund\nDog\tKöter\n", r"line 2: 'Dog' has other targets before; write all of them in one line"),
        (f"dog\t{'x' * 201}\n", r"line 1: a term of 201 characters; at most 200"),
    ],
)
def test_bad_files(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "terms.tsv").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        Glossary.read(str(tmp_path / "terms.tsv"))


def test_constraints_of_texts() -> None:
    assert constraints_of(None, ["a", "b"], ["", ""]) is None
    assert constraints_of(None, ["a", "b"], ["", "x"]) == [Constraint(), Constraint(prefix="x")]
    hund = Constraint((RequiredPhrase(("Hund",)),))
    assert constraints_of(Glossary(TERMS), ["a", "dog"]) == [Constraint(), hund]
