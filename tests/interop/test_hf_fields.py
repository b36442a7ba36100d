"""A setting that an import accepts without a change of our model changes nothing in transformers."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hf_folders as their
import pytest
import torch
from torch import Tensor

from allyouneed.errors import FolderError
from allyouneed.interop.hf.architectures import ARCHITECTURES
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.load import import_folder

pytestmark = pytest.mark.no_shapes
MODELS: dict[str, Callable[[Path], tuple[Path, Any]]] = {
    **{name: getattr(their, name) for name in ("marian", "m2m_100", "bart", "led", "t5", "gpt2", "opt", "bloom")},
    **{name: getattr(their, name) for name in ("llama", "mistral", "qwen2", "gemma", "gemma2", "gpt_neox", "reformer")},
    **{
        kind: partial(their.encoder, kind=kind, head="ForSequenceClassification")
        for kind in ("Bert", "Roberta", "DistilBert", "RoFormer", "Longformer", "BigBird", "FNet")
    },
}
# Fields of the library itself, and those whose effect weights or docs/interop.md state.
ELSEWHERE = {"architectures", "model_type", "vocab_size", "torch_dtype", "dtype", "_attn_implementation", "return_dict"}
ELSEWHERE |= {"is_encoder_decoder", "axial_pos_embds", "lsh_attn_chunk_length"}
NAMES = ["relu", "gelu", "silu", "relative_key", "last"]
IDS, TARGET = torch.tensor([[5, 9, 7, 11, 6, 12, 8, 30, 2]]), torch.tensor([[2, 9, 7, 11, 6]])


def others(value: Any) -> list[Any]:
    """Return other values of a field."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 0]
    if isinstance(value, float):
        return [2 * value + 0.1, 0.0]
    return NAMES if isinstance(value, str) else [True, 2, "relu"] if value is None else []


@torch.no_grad()
def logits(model: Any) -> Tensor:
    given = {"decoder_input_ids": TARGET} if model.config.is_encoder_decoder else {}
    found: Tensor = model(input_ids=IDS, **given)[0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_no_setting_is_ignored_that_has_an_effect(tmp_path: Path, name: str) -> None:
    folder, theirs = MODELS[name](tmp_path / "theirs")
    tree = json.loads((folder / "config.json").read_text())
    architecture, weights, right = ARCHITECTURES[tree["model_type"]], theirs.state_dict(), logits(theirs.eval())

    def read(changed: dict[str, Any]) -> object:
        fields = Fields(changed, "config.json")
        found = architecture.read(fields, tree["architectures"][0])
        for part in ("pad", "bos", "eos", "decoder_start"):
            fields.tokens(f"{part}_token_id")
        fields.finish()
        return found

    ours, accepted = read(tree), 0
    for field, value in sorted({**theirs.config.to_dict(), **tree}.items()):
        for other in others(value) if field not in ELSEWHERE and not field.endswith("_token_id") else []:
            changed = {**tree, field: other}
            try:
                same = read(changed) == ours
                model = type(theirs)(type(theirs.config).from_dict(dict(changed))) if same else None
                if model is not None:
                    model.load_state_dict(weights, strict=False)
            except Exception:  # refused here, or there, or because of the shapes of weights
                continue
            if model is not None:
                torch.testing.assert_close(logits(model.eval()), right, rtol=0, atol=1e-5, msg=f"{field}: {other!r}")
                accepted += 1
    assert accepted > 10


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    folder, _ = their.t5(tmp_path / "t5")
    tree = json.loads((folder / "config.json").read_text())
    for changed, message in (
        ({"dense_act_fn": "silu"}, "dense_act_fn: 'silu'; only 'relu' is supported"),
        ({"is_gated_act": True}, "is_gated_act: True; only False is supported"),
        ({"tie_word_embeddings": False, "scale_decoder_outputs": True}, "only a tied output projection is scaled"),
    ):
        with pytest.raises(FolderError, match=message):
            ARCHITECTURES["t5"].read(Fields({**tree, **changed}, "config.json"), "T5ForConditionalGeneration")
    folder, _ = their.encoder(tmp_path / "bird", "BigBird", "Model")
    tree = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 0}
    (folder / "config.json").write_text(json.dumps(tree))
    with pytest.raises(FolderError, match="is not part of this architecture"):
        import_folder(folder, tmp_path / "ours")
