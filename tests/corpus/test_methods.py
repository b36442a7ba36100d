"""Each method beside an oracle: sets, brute force, Python's codecs."""

import random
import unicodedata
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from planted import clean_pairs

from allyouneed.corpus.encoding import encoding_defects, is_mojibake
from allyouneed.corpus.lengths import is_unequal, usual_ratio
from allyouneed.corpus.near_copies import HeldOut
from allyouneed.corpus.scripts import is_other_script, scripts_in, usual_scripts
from allyouneed.corpus.split import split_of, write_split
from allyouneed.corpus.survey import Repeats, Sample
from allyouneed.errors import ConfigError
from allyouneed.text.corpora import PairCorpus, TextCorpus
from allyouneed.text.fingerprints import Grams, fingerprint, fingerprints, likeness
from allyouneed.text.overlap import Overlap

TEXTS = {
    "German": "Die Würde des Menschen ist unantastbar, äußerst fröhlich.",
    "French": "Où êtes-vous allé l’été dernier ? Ça coûte 5 €.",
    "Polish": "Wszyscy ludzie rodzą się wolni i równi, zażółć gęślą jaźń.",
    "Turkish": "İnsanlar özgür doğarlar, şu ışığa bak.",
    "Vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng.",
    "Russian": "Все люди рождаются свободными и равными.",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι.",
    "Arabic": "يولد جميع الناس أحرارًا متساوين",
    "Hindi": "सभी मनुष्यों को गौरव",
    "Thai": "มนุษย์ทั้งหลายเกิดมา",
    "Japanese": "すべての人間は、生まれながらにして自由であり、カタカナ。",
    "Korean": "모든 인간은 태어날 때부터 자유로우며",
    "capitals before quotes": "»MENÜ«, „CAFÉ“, “VOILÀ”, «À LA CARTE», ‘Ä’, Â, Ã, naïve œuvre – 20 °C, ½ × ¾…",
}
SCRIPTS = {
    **dict.fromkeys(("German", "French", "Polish", "Turkish", "Vietnamese"), "LATIN"),
    "Russian": "CYRILLIC",
    "Greek": "GREEK",
    "Arabic": "ARABIC",
    "Hindi": "DEVANAGARI",
    "Thai": "THAI",
    "Japanese": "CJK",
    "Korean": "HANGUL",
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("wrong", ["cp1252", "latin-1"])
def test_mojibake_is_told_from_text(name: str, wrong: str) -> None:
    text = unicodedata.normalize("NFC", TEXTS[name])
    assert encoding_defects(text) == []
    garbled = text.encode().decode(wrong, "replace" if wrong == "cp1252" else "strict")
    assert is_mojibake(garbled)
    assert "unnormalised" in encoding_defects(unicodedata.normalize("NFD", "é " + text))


def test_control_characters() -> None:
    for char in "\x00\x07\x1b\x7f\x85\x9d\ue000\uffff":
        assert encoding_defects(f"a{char}b") == ["control"]
    assert encoding_defects("a\tb\u00a0c\u200bd\u2028e") == []
    assert encoding_defects("a\ufffdb") == ["replacement"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(name: str) -> None:
    text, usual = TEXTS[name], frozenset([SCRIPTS[name]])
    assert max(scripts_in(text), key=lambda script: scripts_in(text)[script]) == SCRIPTS[name]
    assert usual_scripts([text] * 3) == usual
    for other, script in SCRIPTS.items():
        assert is_other_script(TEXTS[other], usual) == (script != SCRIPTS[name])
    assert not is_other_script("123 - 456 (7)", usual)


def test_scripts_of_a_mixed_corpus_are_all_usual() -> None:
    usual = usual_scripts([TEXTS["Japanese"], TEXTS["German"]])
    assert usual == {"CJK", "LATIN"}
    assert is_other_script(TEXTS["Russian"], usual)


def test_lengths() -> None:
    assert usual_ratio([("ab", "abc"), ("a" * 10, "b" * 20), ("a", "aaaa"), ("", "b")]) == 2
    assert is_unequal("a" * 100, "b" * 30, 1.0, 3.0)
    assert is_unequal("a" * 30, "b" * 100, 1.0, 3.0)
    assert not is_unequal("a" * 30, "b" * 89, 1.0, 3.0)
    assert not is_unequal("a", "b" * 20, 1.0, 3.0)
    assert not is_unequal("a" * 30, "b" * 100, 3.0, 3.0)


def test_repeats_as_a_set_has_them() -> None:
    chooser = random.Random(4)
    rows = [(str(chooser.randrange(900)), "x") for _ in range(2000)]
    repeats, seen, expected = Repeats(fingerprints(rows)), set[tuple[str, str]](), []
    for row in rows:
        expected.append(row in seen)
        seen.add(row)
    assert [one for at in range(0, 2000, 300) for one in repeats.is_repeat(rows[at : at + 300])] == expected


def test_fingerprints_depend_on_content_only() -> None:
    same = [("café  au lait", "x"), ("cafe\u0301 au lait ", "x")]
    assert fingerprint(same[0]) == fingerprint(same[1])
    others = [("café au lait", "y"), ("café", "au lait x"), ("Café au lait", "x"), ("", "café au lait x")]
    assert len({fingerprint(row) for row in [same[0], *others]}) == 5
    assert fingerprint(("ab", "c")) == 15108712286742957739  # the same in every process and version


def test_a_sample_is_spread_over_all_rows() -> None:
    sample = Sample(100)
    for at in range(0, 10_000, 37):
        sample.add([(str(number),) for number in range(at, min(at + 37, 10_000))])
    numbers = [int(row[0]) for row in sample.rows]
    steps = {after - before for before, after in pairwise(numbers)}
    assert 100 <= len(numbers) < 200
    assert len(steps) == 1
    assert numbers[-1] >= 10_000 - 2 * steps.pop()


def test_near_copies_as_brute_force_finds_them() -> None:
    chooser = random.Random(5)
    held = [one[0] for one in clean_pairs(40, seed=6)] + ["", "a", "ab"]
    texts = []
    for number in range(80):
        words = held[number % 40].split(" ")
        for _ in range(number // 40 * chooser.randrange(4)):
            words[chooser.randrange(len(words))] = "changed"
        texts.append(" ".join(words))
    texts += ["a", "ab", "b", *(one[0] for one in clean_pairs(30, seed=7))]
    index = HeldOut(held, 0.8)
    found = index.is_near(texts, Grams.of(texts))
    expected = [max(likeness(text, other) for other in held) >= 0.8 for text in texts]
    missed = sum(want and not got for want, got in zip(expected, found, strict=True))
    assert not any(got and not want for want, got in zip(expected, found, strict=True))
    assert missed <= 1
    assert 43 < sum(expected) < 82
    assert index.found.sum() >= 40


def test_grams_do_not_cross_texts() -> None:
    texts = ["abcdef", "", "x", "ghij" * 10]
    together, alone = Grams.of(texts), [Grams.of([text]) for text in texts]
    assert together.counts().tolist() == [one.counts()[0] for one in alone] == [5.0, 1.0, 1.0, 39.0]
    np.testing.assert_array_equal(together.signatures(), np.concatenate([one.signatures() for one in alone]))


def test_overlap_of_held_out_rows() -> None:
    rows = clean_pairs(5000)
    held = {"valid": [rows[3], rows[4999], rows[3], ("new", "neu")], "test": [("new", "neu")], "none": []}
    overlap = Overlap({split: partial(iter, some) for split, some in held.items()})
    parts = [overlap.shared(rows[start : start + 100]) for start in range(0, 5000, 100)]
    assert sum(map(bool, parts)) == 2
    assert overlap.notes(parts, "pair") == ["valid: 3 of 4 pairs also in train"]
    assert overlap.notes([], "pair") == []


def test_a_split_is_decided_by_the_text(tmp_path: Path) -> None:
    rows = clean_pairs(3000)
    rows += [*((row[0].upper() + "!", "other") for row in rows[:30]), *rows[100:200]]
    path = tmp_path / "a.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    counts = write_split(tmp_path / "out", [PairCorpus(files=(str(path),))], (0.1, 0.2), 0, lambda *_: None)
    parts = {}
    for name in ("train", "valid", "test"):
        lines = (tmp_path / "out" / name / "a.tsv").read_text(encoding="utf-8").splitlines()
        parts[name] = [tuple(line.split("\t")) for line in lines]
    assert counts == [len(part) for part in parts.values()]
    assert Counter(row for part in parts.values() for row in part) == Counter(rows)
    assert abs(counts[1] / len(rows) - 0.1) < 0.03
    assert abs(counts[2] / len(rows) - 0.2) < 0.03
    keys = [{row[0].casefold().strip("!") for row in part} for part in parts.values()]
    assert not keys[0] & keys[1] | keys[0] & keys[2] | keys[1] & keys[2]
    assert [split_of(text, (0.3, 0.3), 1) for text in "abcdefgh"] != [
        split_of(text, (0.3, 0.3), 2) for text in "abcdefgh"
    ]


def test_lines_of_a_document_are_not_split(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="plain text is one document"):
        write_split(tmp_path / "out", [TextCorpus(files=(str(tmp_path / "a.txt"),))], (0.1, 0.2), 0, lambda *_: None)
