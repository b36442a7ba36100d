"""Tokenisers: exact round trips, no control symbols from text, deterministic training, safe loading."""

import json
import os
import threading
from functools import cache
from itertools import repeat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.config import parse
from allyouneed.errors import ConfigError, FolderError
from allyouneed.text.child_training import train_in_child
from allyouneed.text.specials import BOS, EOS, PAD, UNK
from allyouneed.text.tokenizer import SPECIALS, THREADS, Kind, Tokenizer, TokenizerConfig, of_symbols, train

TEXTS = ["the cat sat on the mat", "a dog and a cat", "forty-one thousand and two", "Größe, Straße!", "the the the"] * 3
ANY = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)
KINDS: list[Kind] = ["bpe", "unigram", "characters", "bytes", "words"]


@cache
def tokenizer(kind: Kind, sentences: bool = True) -> Tokenizer:
    return train(TEXTS, TokenizerConfig(kind=kind, size=300), sentences)


@pytest.mark.parametrize("sentences", [True, False])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "bytes"])
@given(text=ANY)
def test_any_text_survives_a_round_trip(kind: Kind, sentences: bool, text: str) -> None:
    ids = tokenizer(kind, sentences).encode(text)
    assert tokenizer(kind, sentences).decode(ids) == text
    assert UNK not in ids


@given(text=st.text(alphabet=sorted(set("".join(TEXTS))), max_size=40))
def test_known_characters_survive_a_round_trip(text: str) -> None:
    assert tokenizer("characters").decode(tokenizer("characters").encode(text)) == text


@given(words=st.lists(st.sampled_from([*TEXTS, "cat", "two", "-"])))
def test_known_words_survive_a_round_trip_with_single_blanks(words: list[str]) -> None:
    ids = tokenizer("words").encode("  ".join(words))
    assert tokenizer("words").decode([i for i in ids if i != UNK]) == " ".join(words) or UNK in ids


@pytest.mark.parametrize("kind", KINDS)
@given(text=ANY | st.sampled_from([*SPECIALS, "< pad >< eos >", " < unk > "]))
def test_text_is_never_a_control_symbol(kind: Kind, text: str) -> None:
    assert not {PAD, BOS, EOS} & set(tokenizer(kind).encode(text))


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_come_first_and_are_not_shown(kind: Kind) -> None:
    ours = tokenizer(kind)
    assert [ours.vocabulary[name] for name in SPECIALS] == [PAD, BOS, EOS, UNK]
    assert sorted(ours.vocabulary.values()) == list(range(ours.size))
    ids = ours.encode("the cat")
    assert ours.decode([BOS, *ids, EOS, PAD, PAD]) == "the cat" == ours.decode(ids)
    assert ours.encode_batch(["the cat", "a"]) == [ids, ours.encode("a")]
    assert ours.kind == kind


def test_the_first_word_is_like_any_other() -> None:
    for kind in ("bpe", "words"):
        ours = tokenizer(kind)
        assert ours.encode("cat the") == [*ours.encode("cat"), *ours.encode("the")]


def test_words_are_split_at_hyphens_too() -> None:
    assert tokenizer("words").words("forty-one  thousand") == [" forty", "-", "one", " thousand"]


def test_unknown_characters_and_words() -> None:
    assert tokenizer("characters").encode("a😀\U0010ffff\t") == [tokenizer("characters").encode("a")[0], UNK, UNK, UNK]
    assert tokenizer("words").encode("xyzzy cat")[0] == UNK


@given(text=ANY)
def test_the_table_of_characters_gives_the_ids_of_the_library(text: str) -> None:
    ours = tokenizer("characters")
    assert ours.encode(text) == ours._library.encode(text).ids


@pytest.mark.parametrize("kind", KINDS)
def test_training_twice_gives_the_same_file(kind: Kind) -> None:
    again = train(iter(TEXTS), TokenizerConfig(kind=kind, size=300))
    assert again.to_json() == tokenizer(kind).to_json()


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer(kind).to_json(), encoding="utf-8")
    loaded = Tokenizer.load(path)
    assert loaded.kind == kind
    assert loaded.vocabulary == tokenizer(kind).vocabulary
    assert loaded.encode("the cat, a doge") == tokenizer(kind).encode("the cat, a doge")


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[" * 100_000, "not json", '{"model": {"type": "BPE"}}', json.dumps({"version": "1.0", "model": None})],
)
def test_a_file_that_is_not_a_tokeniser(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(FolderError, match=r"tokenizer.json: not a tokeniser") as error:
        Tokenizer.load(tmp_path / "tokenizer.json")
    assert "\n" not in str(error.value)


def test_a_foreign_tokeniser(tmp_path: Path) -> None:
    tree = json.loads(tokenizer("bpe").to_json())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tree["added_tokens"] = [{"id": 7, "content": "cat", "special": True, **flags}]
    with pytest.raises(FolderError, match="not a tokeniser of allyouneed"):
        Tokenizer.from_json(json.dumps(tree), "x")
    with pytest.raises(FolderError, match="not readable"):
        Tokenizer.load(tmp_path / "absent.json")


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "t.json").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(FolderError, match="at most 67,108,864"):
        Tokenizer.load(tmp_path / "t.json")


@given(text=ANY, length=st.integers(1, 20))
def test_surely_longer_is_never_wrong(text: str, length: int) -> None:
    for kind in KINDS:
        if tokenizer(kind).surely_longer(text, length):
            assert len(tokenizer(kind).encode(text)) > length
    assert tokenizer("bpe").surely_longer("x" * 10_000, 2)


def test_symbols_known_without_training() -> None:
    ours = of_symbols(["[MIN", "]", "7"], "words")
    assert ours.size == 7
    assert ours.decode(ours.encode("[MIN 7 7 ]")) == "[MIN 7 7 ]"


def test_size_is_a_limit() -> None:
    assert train(TEXTS, TokenizerConfig(kind="characters", size=6)).size == 6
    assert train(TEXTS, TokenizerConfig(kind="words", size=7)).encode("the") != [
        UNK
    ]  # the most frequent words are kept


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "bpe", "size": 100}, "needs at least 260"),
        ({"kind": "words", "dropout": 0.1}, "only a bpe tokeniser"),
        ({"kind": "wordz"}, "words"),
        ({"sise": 5}, "did you mean 'size'"),
    ],
)
def test_impossible_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(TokenizerConfig, settings)


def test_threads_are_used_only_inside_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of several threads overlap: the setting is restored after the last one."""
    ours, seen = tokenizer("bpe"), []
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "before")
    inside = threading.Barrier(3)

    def call() -> None:
        with THREADS:
            inside.wait()
            seen.append(os.environ["TOKENIZERS_PARALLELISM"])
            ours.encode_batch(["a", "b"])

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["true"] * 3
    assert os.environ["TOKENIZERS_PARALLELISM"] == "before"


HOSTILE = {
    "an expression that takes exponential time": (["pre_tokenizer"], {"type": "Split", "pattern": {"Regex": "(a+)+$"}}),
    "a text before each text": (["normalizer", "prepend"], "x" * 1000),
    "a prefix longer than its pieces": (["model", "continuing_subword_prefix"], "xxxx"),
    "dropout": (["model", "dropout"], 0.5),
    "a merge of nothing": (["model", "merges"], [["", "a"]]),
    "too many pieces": (["model", "vocab"], {str(number): number for number in range((1 << 20) + 1)}),
    "a post-processor": (["post_processor"], {"type": "ByteLevel"}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_may_only_use_allowed_parts(name: str) -> None:
    tree = json.loads(tokenizer("bpe").to_json())
    (*path, last), value = HOSTILE[name]
    parent = tree
    for key in path:
        parent = parent[key]
    parent[last] = value
    with pytest.raises(FolderError, match="not a tokeniser of allyouneed"):
        Tokenizer.from_json(json.dumps(tree), "x")


def test_the_error_of_a_child_that_ends_before_it_reads_all_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    child.write_text("""#!/bin/sh\nprintf '{"error": "the size is too small"}'\n""")
    child.chmod(0o755)
    monkeypatch.setattr("allyouneed.text.child_training.sys.executable", str(child))
    assert train_in_child(repeat("text"), {}) == {"error": "the size is too small"}
