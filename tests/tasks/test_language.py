"""Language modelling: random windows for training, every held-out token predicted once."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.config import parse
from allyouneed.errors import ConfigError, DataError
from allyouneed.tasks import Batch, Units
from allyouneed.tasks.language import LanguageConfig, LanguageData
from allyouneed.text.specials import BOS, PAD
from helpers import shared_data

TEXT = "".join(f"line {number} of the text\n" for number in range(60))


def language(folder: Path, **settings: object) -> LanguageData:
    (folder / "text").write_text(TEXT, encoding="utf-8")
    tree = {"train": str(folder / "text"), "split": [0.9, 0.1], "context": 7, "batch": 3, **settings}
    return LanguageConfig.model_validate(tree).prepare(folder / "data", 0)


def ids(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    assert batch.input_BT is not None
    assert batch.output_BT is not None
    return batch.input_BT, batch.output_BT


def test_windows_are_pieces_of_the_text(tmp_path: Path) -> None:
    data = language(tmp_path)
    cut = int(len(TEXT) * 0.9)
    assert data.codec.target is not None
    for index in range(20):
        inputs, output = ids(data.batch(4, index))
        assert inputs.shape == output.shape == (3, 7)
        assert torch.equal(inputs[:, 1:], output[:, :-1])
        for row in output:
            assert data.codec.target.decode(row.tolist()) in TEXT[:cut]


def test_addressed_by_seed_and_index(tmp_path: Path) -> None:
    data, again = language(tmp_path), language(tmp_path)
    assert torch.equal(ids(data.batch(1, 9))[0], ids(again.batch(1, 9))[0])
    assert not torch.equal(ids(data.batch(1, 9))[0], ids(data.batch(1, 8))[0])
    assert not torch.equal(ids(data.batch(1, 9))[0], ids(data.batch(2, 9))[0])


@pytest.mark.parametrize("kind", ["characters", "bytes", "bpe"])
@pytest.mark.parametrize(("context", "overlap"), [(7, None), (7, 0), (5, 4), (300, None), (1, 0)])
def test_every_held_out_token_is_predicted_once(kind: str, context: int, overlap: int | None, tmp_path: Path) -> None:
    settings = {} if overlap is None else {"overlap": overlap}
    data = language(tmp_path, context=context, tokenizer={"kind": kind, "size": 280}, **settings)
    predicted: list[int] = []
    for batch in data.held_out("valid"):
        inputs, output = ids(batch)
        for before, after in zip(inputs, output, strict=True):
            counted = after != PAD
            # Each prediction that counts is of the token after its input.
            assert all(before[i + 1] == after[i] for i in range(len(after) - 1) if counted[i] and counted[i + 1])
            predicted += after[counted].tolist()
    assert data.codec.target is not None
    valid = TEXT[int(len(TEXT) * 0.9) :]
    assert data.codec.target.decode(predicted) == valid
    how = f"context:{context}|overlap:{context // 2 if overlap is None else overlap}"
    assert data.units("valid") == Units(len(predicted), len(valid), len(valid.encode()), how)
    first = next(iter(data.held_out("valid")))
    assert ids(first)[0][0, 0] == BOS


def test_later_windows_read_earlier_tokens(tmp_path: Path) -> None:
    batches = list(language(tmp_path, context=8, overlap=3).held_out("valid"))
    inputs, output = ids(batches[0])
    assert (output[0] != PAD).all()
    assert (output[1:] != PAD).sum(dim=1).tolist() == [5, 5]
    assert inputs[1, :4].tolist() == [BOS, *output[0, 5:8].tolist()]


@pytest.mark.parametrize(("batch", "overlap", "segment"), [(3, 0, 4), (1, 2, 7), (5, 6, 1), (200, 3, 7)])
def test_with_segments_held_out_text_is_read_as_long_streams(
    batch: int, overlap: int, segment: int, tmp_path: Path
) -> None:
    data = language(tmp_path, batch=batch, overlap=overlap, segment=segment)
    assert data.batch(0, 0).segment == segment
    (streams,) = data.held_out("valid")
    assert streams.segment == segment
    inputs, output = ids(streams)
    assert inputs.shape[0] <= batch
    assert data.codec.target is not None
    predicted = data.codec.target.decode(output[output != PAD].tolist())
    assert predicted == TEXT[int(len(TEXT) * 0.9) :]
    assert (output[1:, :overlap] == PAD).all()  # read, not predicted
    assert data.units("valid").how == f"segment:{segment}|carried|streams:{batch}|overlap:{overlap}"


def test_three_fractions_and_several_files(tmp_path: Path) -> None:
    data = language(tmp_path, split=[0.5, 0.25, 0.25])
    assert data.units("test").characters == len(TEXT) - int(len(TEXT) * 0.75)
    (tmp_path / "a").write_text("abc\n" * 9)
    (tmp_path / "b").write_bytes("äbc\r\n".encode() * 9)
    files = [str(tmp_path / "a"), str(tmp_path / "b")]
    tree = {"train": files, "valid": files[1], "context": 4, "batch": 50}
    data = LanguageConfig.model_validate(tree).prepare(tmp_path / "d", 0)
    assert data.units("valid") == Units(36, 36, 45, "context:4|overlap:2")
    inputs, output = ids(data.batch(0, 0))
    assert (inputs == BOS).any()
    assert not (output == BOS).any()  # the start of a document is not predicted
    with pytest.raises(ConfigError, match="test: the recipe has no such data"):
        data.units("test")


@given(content=st.text(alphabet="ab \n", min_size=30, max_size=200), share=st.floats(0.3, 0.7))
def test_parts_are_cut_by_characters(content: str, share: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("cut")
    (folder / "x").write_text(content)
    tree = {"train": str(folder / "x"), "split": [share, 1 - share], "context": 1}
    data = LanguageConfig.model_validate(tree).prepare(folder / "d", 0)
    assert data.units("valid").characters == len(content) - int(len(content) * share)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "either valid files or split"),
        ({"split": [0.9, 0.2]}, "sum to 1"),
        ({"split": [0.9, 0.1], "valid": "y"}, "either valid files or split"),
        ({"valid": "y", "context": 8, "overlap": 8}, "less than context"),
        ({"valid": "y", "context": 8, "segment": 9}, "not be more than context"),
        ({"valid": "y", "tokenizer": {"kind": "bpe", "dropout": 0.1}}, "dropout works for translation only"),
    ],
)
def test_impossible_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(LanguageConfig, {"train": "x", **settings})


def test_too_little_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="context=5000 needs more"):
        language(tmp_path, context=5000)
    (tmp_path / "empty").write_text("")
    tree = {"train": str(tmp_path / "text"), "valid": str(tmp_path / "empty"), "context": 4}
    with pytest.raises(DataError, match="empty: the valid text is empty"):
        LanguageConfig.model_validate(tree).prepare(tmp_path / "d", 0)


def test_tinyshakespeare_has_its_customary_split(tmp_path: Path) -> None:
    path = shared_data("lm", "tinyshakespeare", "input.txt")
    tree = {"train": str(path), "split": [0.9, 0.1], "context": 64, "batch": 12}
    data = LanguageConfig.model_validate(tree).prepare(tmp_path, 0)
    assert data.notes == ["train: 1,003,854 tokens", "valid: 111,540 tokens"]
    assert data.sizes.target == 65 + 4
    assert np.sum([batch.tokens for batch in data.held_out("valid")]) == 111_540
