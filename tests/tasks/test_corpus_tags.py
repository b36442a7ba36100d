"""Tags of corpora: one token in front of each source, which no text spells and no output shows."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from allyouneed.cli import run
from allyouneed.config import parse
from allyouneed.decode import SampleConfig, sample
from allyouneed.errors import ConfigError
from allyouneed.folder import load_folder
from allyouneed.tasks.base import TaskData
from allyouneed.tasks.translation import TranslationConfig
from allyouneed.text.codec import Codec
from allyouneed.text.specials import EOS
from allyouneed.text.tokenizer import control_name
from allyouneed.training import Recipe, train

TAG = "<BT>"
PAIRS = {
    "real": [(f"one {word} cat", f"eine {word} Katze") for word in ("red", "old", "big", "sad", "new", "wet")],
    "back": [(f"two {word} <BT> dogs", f"zwei {word} Hunde") for word in ("mad", "hot", "shy", "odd")],
}
TOKENIZERS: list[dict[str, Any]] = [
    {"kind": "bpe", "size": 280},
    {"kind": "bpe", "size": 300, "dropout": 0.3},
    {"kind": "unigram", "size": 290},
    {"kind": "bytes"},
    {"kind": "characters", "size": 60},
    {"kind": "words", "size": 60},
]


def write_corpora(folder: Path) -> dict[str, list[str]]:
    """Write the corpora as parallel files; return their names."""
    found = {}
    for name, pairs in PAIRS.items():
        found[name] = [str(folder / f"{name}.{end}") for end in ("en", "de")]
        for side, file in enumerate(found[name]):
            Path(file).write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return found


def task_settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return the settings of a task with a tagged corpus beside another one."""
    files = write_corpora(folder)
    corpora = [{"files": files["real"]}, {"files": files["back"], "tag": TAG, "weight": 2}]
    return {"type": "translation", "train": corpora, "valid": files["real"], **changes}


def rows_of_epoch(data: TaskData, epoch: int) -> list[list[int]]:
    """Return the sources of an epoch, without padding."""
    count = data.epoch or 0
    batches = [data.batch(7, epoch * count + number).source_BS for number in range(count)]
    return [[one for one in row if one] for batch in batches if batch is not None for row in batch.tolist()]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda one: "-".join(map(str, one.values())))
def test_sources_of_a_tagged_corpus_begin_with_one_token(tokenizer: Any, shared: bool, tmp_path: Path) -> None:
    task = parse(TranslationConfig, task_settings(tmp_path, tokenizer=tokenizer, shared=shared))
    data = task.prepare(tmp_path / "data", 1)
    source, target = data.codec.both()
    tag = source.vocabulary[control_name(TAG)]
    assert source.kind == tokenizer["kind"]
    assert source.size <= tokenizer.get("size", 4 + 256 + 1)
    assert (control_name(TAG) in target.vocabulary) == shared
    for epoch in (0, 1):
        found = Counter(source.decode(row) for row in rows_of_epoch(data, epoch) if row[0] == tag)
        assert found == {text: 2 for text, _ in PAIRS["back"]}
        plain = [row for row in rows_of_epoch(data, epoch) if tag not in row]
        assert sorted(source.decode(row) for row in plain) == sorted(text for text, _ in PAIRS["real"])
    if not tokenizer.get("dropout"):
        expected = [[tag, *source.encode(text), EOS] for text, _ in PAIRS["back"]]
        assert sorted(row for row in rows_of_epoch(data, 0) if tag in row) == sorted(expected * 2)
    assert tag not in source.encode(f"{TAG} {control_name(TAG)}")  # text stays text
    data.codec.save(tmp_path)
    assert Codec.load(tmp_path).same_ids_as(data.codec)
    assert any("with the tag <BT>" in note for note in data.notes)


def test_a_tag_counts_for_the_length_of_a_source(tmp_path: Path) -> None:
    tokenizer = {"kind": "words", "size": 60}  # of 5 tokens: "two mad <BT> dogs" and EOS
    with pytest.raises(ConfigError, match="max_length=5 is more than"):
        parse(TranslationConfig, task_settings(tmp_path, max_length=5, batch_tokens=4, tokenizer=tokenizer))
    counts, budget = {}, 10  # two rows without a tag
    for length in (5, 6):
        changes = {"max_length": length, "batch_tokens": budget, "tokenizer": tokenizer}
        data = parse(TranslationConfig, task_settings(tmp_path, **changes)).prepare(tmp_path / "data", 1)
        for number in range(data.epoch or 0):
            source_BS = data.batch(7, number).source_BS
            assert source_BS is not None
            assert source_BS.numel() <= budget
        counts[length] = len(rows_of_epoch(data, 0))
        assert max(len(row) for row in rows_of_epoch(data, 0)) <= length
    assert counts == {5: 6, 6: 6 + 2 * 4}


@pytest.fixture(scope="module")
def tagged_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tagged")
    task = task_settings(folder, tokenizer={"kind": "bpe", "size": 270})
    model = {"type": "encoder-decoder", "width": 16, "hidden": 16, "encoder_layers": 1, "decoder_layers": 1}
    mixer = {"type": "softmax", "heads": 2}
    training = {"budget": {"steps": 2}, "log_every": 1, "evaluate_every": 0.5}
    train(parse(Recipe, {"task": task, "model": {**model, "mixer": mixer}, "train": training}), folder / "run")
    return folder / "run"


def test_a_tag_is_not_in_outputs_even_if_it_is_generated(tagged_model: Path) -> None:
    bundle = load_folder(tagged_model)
    _, target = bundle.codec.both()
    tag = target.vocabulary[control_name(TAG)]
    config = SampleConfig(temperature=100.0, n=50, max_length=40)  # nearly uniform
    found = sample(bundle.model, [[]], config, [bundle.codec.encode_source("one red cat")])[0]
    with_tag = [one.ids for one in found if tag in one.ids]
    assert with_tag
    for ids in with_tag:
        assert bundle.codec.decode_target(ids) == bundle.codec.decode_target([one for one in ids if one != tag])
    assert control_name(TAG) not in target.decode([tag, *target.encode("eine Katze")])


def test_a_tagged_model_is_tuned_evaluated_and_searched_for_without_its_data(
    tagged_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write_corpora(tmp_path)
    corpora = f'[["{files["real"][0]}", "{files["real"][1]}"], {{files={files["back"]}, tag="TAG"}}]'.replace("'", '"')
    arguments = ["train", "--from", str(tagged_model), "--out", str(tmp_path / "run"), "--steps", "1"]
    valid = ["--valid", files["real"][0], "--valid", files["real"][1]]
    assert run([*arguments, "--train", corpora.replace("TAG", "<other>"), *valid]) != 0
    assert "tag = '<other>': the model has no such token" in capsys.readouterr().err
    assert run([*arguments, "--train", corpora.replace("TAG", TAG), *valid]) == 0
    assert run(["evaluate", str(tmp_path / "run"), "--split", "valid"]) == 0
    assert run(["shortlist", str(tagged_model)]) == 0
    capsys.readouterr()
    data = f'{{files={files["back"]}, tag="<BT>"}}'.replace("'", '"')
    assert run(["evaluate", str(tagged_model), "--data", data]) != 0
    assert "tag is for training" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": {"files": ["a.en", "a.de"], "tag": "<BT>"}, "valid": "v.tsv"}, "tag on all corpora"),
        ({"train": "a.tsv", "valid": {"files": "v.tsv", "tag": "<BT>"}}, "valid: tag is for training"),
        ({"train": ["a.tsv", {"files": "b.tsv", "tag": "B T"}], "valid": "v.tsv"}, "1 to 40 characters without blanks"),
    ],
)
def test_tags_without_effect_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(TranslationConfig, settings)
