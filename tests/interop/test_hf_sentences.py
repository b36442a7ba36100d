"""Which imported models read a text as a whole, and that an export keeps how many sentences a model reads."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import hf_folders as their
import pytest

from allyouneed.evaluation.settings import sentence_splitter
from allyouneed.folder import load_folder, save_folder
from allyouneed.interop.hf.export import export_folder
from allyouneed.interop.hf.load import import_folder, read_folder
from allyouneed.training import Recipe

TEXT = "the cat sat. the dog ran."


def imported(make: Any, folder: Path) -> Path:
    make(folder / "theirs")
    import_folder(folder / "theirs", folder / "ours")
    return folder / "ours"


@pytest.mark.parametrize("make", [their.t5, their.bart, their.pegasus, their.led])
def test_models_of_whole_texts_are_not_split(make: Any, tmp_path: Path) -> None:
    """T5 has its task in front of the first sentence; the others summarise."""
    bundle = load_folder(imported(make, tmp_path))
    assert sentence_splitter(bundle).split(TEXT).pieces == (TEXT,)
    assert len(sentence_splitter(bundle, "always").split(TEXT).pieces) == 2
    export_folder(bundle, tmp_path / "again")
    assert "sentences_per_text" not in json.loads((tmp_path / "again" / "config.json").read_text())


@pytest.mark.parametrize("make", [their.marian, their.m2m_100, their.mbart])
def test_translators_read_single_sentences(make: Any, tmp_path: Path) -> None:
    bundle = load_folder(imported(make, tmp_path))
    assert len(sentence_splitter(bundle).split(TEXT).pieces) == 2


@pytest.mark.parametrize("make", [their.marian, their.pegasus])
@pytest.mark.parametrize("number", [1, 3])
def test_an_export_states_another_number(make: Any, number: int, tmp_path: Path) -> None:
    """As of a translator that was trained here and became a Pegasus, or of one that was tuned on paragraphs."""
    bundle = load_folder(imported(make, tmp_path))
    codec, recipe = replace(bundle.codec, sentences=number), Recipe.model_validate(bundle.recipe)
    save_folder(tmp_path / "tuned", bundle.model, codec, recipe, "")
    export_folder(load_folder(tmp_path / "tuned"), tmp_path / "again")
    assert (read_folder(tmp_path / "again").codec.sentences or 1) == number
