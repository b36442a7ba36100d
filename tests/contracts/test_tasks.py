"""The contract of tasks, held by every line of TASKS: addressed batches, resuming, bad input, round trips of text."""

import dataclasses
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from task_cases import CASES, EVALUATION_ONLY, TRAINED
from torch import Tensor

from allyouneed.errors import ConfigError, UserError
from allyouneed.tasks import TASKS, Batch, TaskData
from allyouneed.tasks.base import NO_CLASS, Split
from allyouneed.text.specials import BOS, EOS, PAD, UNK
from helpers import ROOT

pytestmark = pytest.mark.no_shapes
SPLITS: tuple[Split, ...] = ("valid", "test")
INDICES = (0, 1, 2, 5, 11)


def prepared(name: str, folder: Path, seed: int = 3) -> TaskData:
    return CASES[name].config(folder / "files").prepare(folder / "data", seed)


def tensors(batch: Batch) -> dict[str, Tensor]:
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {name: value for name, value in fields.items() if isinstance(value, Tensor)}


def same(left: Batch, right: Batch) -> bool:
    ours, theirs = tensors(left), tensors(right)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def digest(data: TaskData) -> str:
    """Return one hash of several training batches and of all held-out batches."""
    batches = [data.batch(seed, index) for seed in (3, 4) for index in INDICES]
    batches += [batch for split in SPLITS for batch in data.held_out(split)]
    plain = [{name: value.tolist() for name, value in tensors(batch).items()} for batch in batches]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def items(batch: Batch) -> list[tuple[int, ...]]:
    """Return the ids that identify each row, without padding: the source, or the input of a decoder."""
    ids_BS = batch.source_BS if batch.source_BS is not None else batch.input_BT
    assert ids_BS is not None
    return [tuple(i for i in row if i != PAD) for row in ids_BS.tolist()]


def refused(action: object) -> str:
    """Call an action that must raise UserError; return its message, which is one line."""
    with pytest.raises(UserError) as caught:
        action()  # type: ignore[operator]
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_task_has_a_case() -> None:
    assert CASES.keys() == TASKS.keys()


@pytest.mark.parametrize("name", sorted(TASKS))
def test_traits_name_the_task(name: str, tmp_path: Path) -> None:
    config = CASES[name].config(tmp_path / "files")
    assert config.traits().type == config.type == name
    assert config.traits().per_position == config.per_position


# --- addressed batches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAINED)
def test_a_batch_depends_on_its_address_alone(name: str, tmp_path: Path) -> None:
    data = prepared(name, tmp_path)
    first = {index: data.batch(3, index) for index in INDICES}
    list(data.held_out("valid"))
    for index in (*reversed(INDICES), 7, *INDICES):
        assert index not in first or same(data.batch(3, index), first[index])
        data.batch(4, index)  # another seed does not disturb the first


@pytest.mark.parametrize("name", TRAINED)
def test_other_addresses_are_other_batches(name: str, tmp_path: Path) -> None:
    data = prepared(name, tmp_path)
    assert not all(same(data.batch(3, 0), data.batch(3, index)) for index in INDICES)
    assert not all(same(data.batch(3, index), data.batch(4, index)) for index in INDICES)


@pytest.mark.parametrize("name", TRAINED)
def test_an_epoch_has_every_training_item_once(name: str, tmp_path: Path) -> None:
    data = prepared(name, tmp_path)
    if data.epoch is None:
        pytest.skip("generated items or windows: no epochs")
    epochs = [[data.batch(3, first + index) for index in range(data.epoch)] for first in (0, data.epoch)]
    first, second = (sum(batch.examples for batch in epoch) for epoch in epochs)
    assert first == second
    if CASES[name].type != "captioning":  # which shifts its pictures at random
        rows = [sorted(row for batch in epoch for row in items(batch)) for epoch in epochs]
        assert rows[0] == rows[1]


@pytest.mark.slow
def test_a_fresh_process_makes_the_same_batches(tmp_path: Path) -> None:
    here = {name: digest(prepared(name, tmp_path / name)) for name in TRAINED if (tmp_path / name).mkdir() is None}
    program = (
        "import json, sys; from pathlib import Path; from test_tasks import *\n"
        "folder = Path(sys.argv[1])\n"
        "[(folder / name).mkdir(parents=True) for name in TRAINED]\n"
        "print(json.dumps({name: digest(prepared(name, folder / name)) for name in TRAINED}))"
    )
    paths = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests" / "contracts")]
    environment = {"PYTHONPATH": ":".join(paths), "PYTHONHASHSEED": "17", "PATH": ""}
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "other")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == here


# --- resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAINED)
def test_prepared_data_is_found_again(name: str, tmp_path: Path) -> None:
    first = prepared(name, tmp_path)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*") if path.is_file()}
    again = CASES[name].parsed(tmp_path / "files").prepare(tmp_path / "data", 3)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*") if path.is_file()} == written
    assert bool(written) == (bool(CASES[name].files) or name in ("numbers", "dates"))
    assert digest(again) == digest(first)
    assert again.codec.same_ids_as(first.codec)
    assert (again.sizes, again.notes, again.epoch) == (first.sizes, first.notes, first.epoch)


@pytest.mark.parametrize("name", [name for name in TRAINED if CASES[name].files])
def test_changed_files_are_prepared_again(name: str, tmp_path: Path) -> None:
    first, case = prepared(name, tmp_path), CASES[name]
    path = tmp_path / "files" / case.files[0]
    path.write_text(path.read_text().replace("number", "figure").replace("mary", "joan").replace("seven", "eight"))
    if name == "babi":
        path.write_text(path.read_text().replace("Mary", "Joan"))
    second = case.parsed(tmp_path / "files").prepare(tmp_path / "data", 3)
    assert not second.codec.same_ids_as(first.codec)


@pytest.mark.parametrize("name", TRAINED)
def test_damaged_prepared_data_is_prepared_again(name: str, tmp_path: Path) -> None:
    before = digest(prepared(name, tmp_path))
    for path in (tmp_path / "data").rglob("*.bin"):
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-1])
        break
    assert digest(CASES[name].parsed(tmp_path / "files").prepare(tmp_path / "data", 3)) == before


# --- the form of batches ---------------------------------------------------------------------------------------------


def all_batches(data: TaskData) -> list[Batch]:
    return [data.batch(3, index) for index in INDICES] + [one for split in SPLITS for one in data.held_out(split)]


@pytest.mark.parametrize("name", TRAINED)
def test_padding_is_on_the_right(name: str, tmp_path: Path) -> None:
    for batch in all_batches(prepared(name, tmp_path)):
        for ids_BT in (batch.source_BS, batch.input_BT):
            if ids_BT is not None:
                real_BT = ids_BT != PAD
                assert not bool((real_BT[:, 1:] & ~real_BT[:, :-1]).any())
                assert bool(real_BT[:, 0].all())
        if batch.source_BS is not None:
            real_BS = batch.source_BS != PAD
            mask_BS = batch.source_mask_BS
            assert bool(real_BS.all()) if mask_BS is None else torch.equal(mask_BS, real_BS)
            if batch.class_BS is not None:
                assert bool((batch.class_BS[~real_BS] == NO_CLASS).all())
        if batch.input_BT is not None and batch.output_BT is not None:
            assert bool((batch.input_BT[:, 0] == BOS).all())
            assert bool((batch.output_BT[batch.input_BT == PAD] == PAD).all())


@pytest.mark.parametrize("name", TRAINED)
def test_counts_are_those_of_the_tensors(name: str, tmp_path: Path) -> None:
    data = prepared(name, tmp_path)
    for batch in all_batches(data):
        rows = {value.shape[0] for value in tensors(batch).values()}
        assert rows == {batch.examples}
        if batch.output_BT is not None:
            assert batch.tokens == sum(i != PAD for row in batch.output_BT.tolist() for i in row)
        elif batch.class_BS is not None:
            assert batch.tokens == sum(c != NO_CLASS for row in batch.class_BS.tolist() for c in row)
        else:
            assert batch.tokens == batch.examples
        assert batch.tokens > 0
        assert batch.segments == 1
    for split in SPLITS:
        units, examples = data.units(split), data.examples(split)
        if examples:
            assert sum(batch.examples for batch in data.held_out(split)) == len(examples)
        if units is not None:
            assert sum(batch.tokens for batch in data.held_out(split)) == units.tokens


@pytest.mark.parametrize("name", TRAINED)
def test_sizes_cover_all_ids(name: str, tmp_path: Path) -> None:
    data = prepared(name, tmp_path)
    for batch in all_batches(data):
        for ids, size in (
            (batch.source_BS, data.sizes.source),
            (batch.input_BT, data.sizes.target),
            (batch.output_BT, data.sizes.target),
            (batch.class_B, data.sizes.target),
            (batch.class_BS, data.sizes.target),
        ):
            if ids is not None:
                assert NO_CLASS <= int(ids.min()) <= int(ids.max()) < size


@pytest.mark.parametrize("name", [name for name in TRAINED if CASES[name].disjoint])
def test_splits_are_disjoint(name: str, tmp_path: Path) -> None:
    data = prepared(name, tmp_path)
    valid, test = ({row for batch in data.held_out(split) for row in items(batch)} for split in SPLITS)
    train = {row for index in range(40) for row in items(data.batch(3, index))}
    assert valid
    assert test
    assert not train & (valid | test)
    assert not valid & test


@pytest.mark.parametrize("name", sorted(TASKS))
def test_an_example_is_a_held_out_text_and_prepares_nothing(name: str, tmp_path: Path) -> None:
    config = CASES[name].config(tmp_path / "files")
    before = set(tmp_path.rglob("*"))
    text = config.example(3)
    assert set(tmp_path.rglob("*")) == before
    if text is None:
        return
    data = config.prepare(tmp_path / "data", 3)
    if data.codec.source is not None:
        assert text == data.examples("valid")[0][0]
    else:
        (batch, *_) = data.held_out("valid")
        assert batch.output_BT is not None
        assert text.startswith(data.codec.decode_target(batch.output_BT[0].tolist())[:8])


# --- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAINED)
def test_text_survives_a_round_trip(name: str, tmp_path: Path) -> None:
    data = prepared(name, tmp_path)
    codec, tried = data.codec, 0
    for source, target in data.examples("valid") + data.examples("test"):
        assert codec.source is not None
        ids = codec.encode_source(source)
        if UNK not in ids:
            tried += 1
            assert codec.source.decode(ids[codec.text_slice(len(ids))]) == source
        if codec.target is not None and UNK not in (target_ids := codec.encode_target(target)):
            tried += 1
            assert target_ids[-1] == EOS
            assert codec.decode_target(target_ids) == target
        if codec.classes is not None and name != "babi":  # whose held-out answers may be unknown
            assert set(target.split(" ") if codec.per_position else [target]) <= set(codec.classes)
    if not data.examples("valid"):
        assert codec.target is not None
        (batch,) = list(data.held_out("valid"))[:1]
        assert batch.output_BT is not None
        text = codec.decode_target(batch.output_BT[0].tolist())
        tried += 1
        assert text
        assert text in (tmp_path / "files" / "valid.txt").read_text()
    assert tried


@pytest.mark.parametrize("name", TRAINED)
def test_right_answers_score_best(name: str, tmp_path: Path) -> None:
    data = prepared(name, tmp_path)
    references = [target for _, target in data.examples("test")]
    if not references:
        assert data.measure([], []) == []
        return
    best, wrong = data.measure(references, references), data.measure(["?"] * len(references), references)
    assert [score.name for score in best] == [score.name for score in wrong]
    gains = [
        (right.value - score.value) * (1 if right.higher_is_better else -1)
        for right, score in zip(best, wrong, strict=True)
    ]
    assert min(gains) >= 0  # BLEU is 0 either way for texts of less than four words
    assert max(gains) > 0
    assert all(f"n:{len(references)}" in score.signature for score in best)


@pytest.mark.parametrize("name", TRAINED)
def test_files_of_held_out_texts_are_the_held_out_data(name: str, tmp_path: Path) -> None:
    data, case = prepared(name, tmp_path), CASES[name]
    known = data.codec.classes
    pairs = [pair for pair in data.examples("test") if known is None or data.codec.per_position or pair[1] in known]
    if pairs:
        files = [str(tmp_path / "source"), str(tmp_path / "target")]
        for side, file in enumerate(files):
            Path(file).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    else:
        files = [str(tmp_path / "files" / "test.txt")]
    given = case.parsed(tmp_path / "files").from_files(data.codec, files)
    assert given.examples("test") == pairs
    if len(pairs) == len(data.examples("test")):
        ours, theirs = (sum(batch.tokens for batch in one.held_out("test")) for one in (given, data))
        assert ours == theirs
    references = [target for _, target in pairs]
    assert given.measure(references, references) == data.measure(references, references)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(TASKS))
def test_bad_settings_are_refused(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    assert "no_such_setting" in refused(lambda: case.config(tmp_path / "files", no_such_setting=1))
    for changes in case.bad:

        def use(changes: dict[str, object] = changes) -> None:
            case.config(tmp_path / "files", **changes).prepare(tmp_path / "data", 3).batch(3, 0)

        refused(use)


@pytest.mark.parametrize(("name", "file"), [(name, file) for name in TRAINED for file in CASES[name].files])
@pytest.mark.parametrize("fault", ["missing", "empty", "not text", "a folder"])
def test_bad_files_are_refused(name: str, file: str, fault: str, tmp_path: Path) -> None:
    config, path = CASES[name].config(tmp_path / "files"), tmp_path / "files" / file
    path.unlink()
    if fault == "empty":
        path.touch()
    elif fault == "not text":
        path.write_bytes(b"\xff\xfe\x00 broken \x00")
    elif fault == "a folder":
        path.mkdir()
    refused(lambda: config.prepare(tmp_path / "data", 3))


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("fault", ["missing", "empty", "mismatched"])
def test_bad_evaluation_files_are_refused(name: str, fault: str, tmp_path: Path) -> None:
    data = prepared(name, tmp_path)
    files = [tmp_path / "source", tmp_path / "target"]
    if fault != "missing":
        lines = ["one", "one\ntwo"] if fault == "mismatched" else ["", ""]
        for file, text in zip(files, lines, strict=True):
            file.write_text(text)
    given = files[:1] if name == "language" and fault != "mismatched" else files
    refused(lambda: CASES[name].parsed(tmp_path / "files").from_files(data.codec, [str(file) for file in given]))


@pytest.mark.parametrize("name", sorted(EVALUATION_ONLY))
def test_a_task_without_data_refuses_to_prepare(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--data"):
        CASES[name].config(tmp_path / "files").prepare(tmp_path / "data", 3)
