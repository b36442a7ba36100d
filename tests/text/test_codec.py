"""The codec that a model folder stores, and the table of tasks."""

import json
from pathlib import Path
from typing import Any

import pytest

from allyouneed.config import parse, to_toml
from allyouneed.errors import ConfigError, FolderError
from allyouneed.tasks import TASKS
from allyouneed.text.codec import Codec
from allyouneed.text.origin import Origin
from allyouneed.text.specials import BOS, EOS
from allyouneed.text.tokenizer import of_symbols

WORDS, LETTERS = of_symbols(["one", "two"], "words"), of_symbols("abc", "characters")
CODECS = {
    "shared": Codec(WORDS, WORDS),
    "separate": Codec(WORDS, LETTERS),
    "language": Codec(target=LETTERS),
    "classes": Codec(source=WORDS, classes=("no", "yes")),
}


@pytest.mark.parametrize("kind", CODECS)
def test_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    codec = CODECS[kind]
    codec.save(tmp_path)
    loaded = Codec.load(tmp_path)
    assert loaded.classes == codec.classes
    assert (loaded.source is loaded.target) == (codec.source is codec.target)
    assert (tmp_path / "tokenizer.target.json").exists() == (kind == "separate")
    if codec.source:
        assert loaded.encode_source("two one") == codec.encode_source("two one")
    if codec.target:
        ids = codec.encode_target("c")
        assert loaded.decode_target(ids) == codec.decode_target(ids)
        assert loaded.encode_prompt("a") == codec.encode_prompt("a")


def test_special_ids_around_a_text() -> None:
    ids = WORDS.encode("two one")
    assert CODECS["shared"].encode_source("two one") == [*ids, EOS]
    assert CODECS["classes"].encode_source("two one") == [BOS, *ids]
    assert CODECS["shared"].encode_prompt("two one") == [BOS, *ids]
    assert CODECS["shared"].encode_prompt() == [BOS]
    assert CODECS["shared"].decode_target([BOS, *ids, EOS, *ids]) == "two one"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"source": 1, "target": true, "classes": null}',
        '{"source": true, "target": false, "classes": [1]}',
        '{"source": false, "target": false, "classes": null}',
        json.dumps({"source": True}),
    ],
)
def test_a_folder_with_other_contents(content: str, tmp_path: Path) -> None:
    CODECS["shared"].save(tmp_path)
    (tmp_path / "codec.json").write_text(content)
    with pytest.raises(FolderError, match=r"codec.json: not readable"):
        Codec.load(tmp_path)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"codec.json: not readable: .*No such file"):
        Codec.load(tmp_path)


NEEDED: dict[str, dict[str, object]] = {
    "translation": {"train": ["a", "b"], "valid": "c"},
    "language": {"train": "a", "split": [0.9, 0.1]},
    "classification": {"train": "a", "valid": "b"},
    "images": {"train": "a", "held_out": 5},
    "rasp": {"program": "x = tokens;", "vocabulary": ["a", "b"]},
    "rasp-causal": {"program": "x = tokens;", "vocabulary": ["a", "b"]},
}


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_summary_and_survives_toml(name: str) -> None:
    import tomllib

    task = parse(TASKS[name], NEEDED.get(name, {}))
    assert task.type == name
    assert task.summary
    assert task.kinds
    assert parse(TASKS[name], tomllib.loads(to_toml(task))) == task
    with pytest.raises(ConfigError, match="unknown name 'nonsense'"):
        parse(TASKS[name], {**NEEDED.get(name, {}), "nonsense": 1})


BROKEN_ORIGINS: dict[str, dict[str, Any]] = {
    "a token twice": {"ids": [0, 0, 1, 2]},
    "a token too few": {"ids": [0, 1, None, None]},
    "no list": {"ids": 3},
    "no table": {"config": 3},
    "no settings": {"classifier": 3},
    "no number": {"size": "4"},
    "a path": {"files": {"../evil": {"text": "x"}}},
    "a list as an id": {"ids": [0, 1, [2], 2, 3]},
    "an id too many": {"hidden": [5]},
    "no text": {"files": {"a": {"pickle": "x"}}},
    "no base64": {"files": {"a": {"base64": "ä"}}},
}


@pytest.mark.parametrize("name", BROKEN_ORIGINS)
def test_damaged_origins_are_refused(tmp_path: Path, name: str) -> None:
    files = {"tokenizer.json": b"{}", "source.spm": b"\xff\x00"}
    right = Origin((0, 1, None, 2, 3), frozenset({2}), 4, {"eos_token_id": [1, 2]}, files)
    right.save(tmp_path)
    assert Origin.load(tmp_path) == right
    path = tmp_path / "original.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **BROKEN_ORIGINS[name]}))
    with pytest.raises(FolderError, match=r"original.json: not readable"):
        Origin.load(tmp_path)
