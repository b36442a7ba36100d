"""Model folders in int8 compute what `--int8` computes, and are plain models with rounded weights elsewhere."""

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import bundle_of
from safetensors.torch import load_file, save_file

import allyouneed
from allyouneed import kernels
from allyouneed.cli import run
from allyouneed.config import parse
from allyouneed.errors import ConfigError, FolderError
from allyouneed.folder import Bundle, load_folder, save_folder
from allyouneed.inference.head import OptimizedHead
from allyouneed.interop.int8 import export_folder
from allyouneed.models.decoder import Decoder
from allyouneed.storage import new_folder
from allyouneed.training.recipe import Recipe

pytestmark = pytest.mark.no_shapes
NAME = "decoder.blocks.0.feedforward.inner.weight"


def rounded(bundle: Bundle, folder: Path) -> tuple[Path, Path]:
    """Save a model as it is and in int8."""
    task = {"type": "language" if bundle.codec.source is None else "translation", "train": ["x"], "valid": ["x"]}
    recipe = parse(Recipe, {"task": task, "model": bundle.model.config.model_dump(mode="json")})
    plain = save_folder(folder / "plain", bundle.model, bundle.codec, recipe, "card")
    export_folder(load_folder(plain), folder / "int8")
    return plain, folder / "int8"


@pytest.mark.parametrize("settings", [{}, {"tied": False}, {"feedforward": "swiglu"}])
@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_weights_are_rounded_once(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    plain, int8 = rounded(bundle_of(kind, settings), tmp_path)
    assert (int8 / "model.safetensors").stat().st_size < 0.6 * (plain / "model.safetensors").stat().st_size
    right, found = load_file(plain / "model.safetensors"), load_folder(int8).model.state_dict()
    for name, weight in right.items():
        step = weight.abs().amax(dim=1, keepdim=True) / 127 if weight.ndim == 2 else torch.zeros(1)
        assert ((found[name] - weight).abs() <= 0.501 * step).all(), name
    if kernels.build.library() is not None:
        one, other = allyouneed.load(plain, int8=True).model, allyouneed.load(int8).model
        assert isinstance(one.head, OptimizedHead)
        assert isinstance(other.head, OptimizedHead)
        assert other.head.product.int8
        for attribute in ("packed", "scale", "sums", "bias"):
            pairs = [getattr(model.head.product.packed(), attribute) for model in (one, other)]  # type: ignore[union-attr]
            assert torch.equal(*pairs), attribute
            products = [model.get_submodule(NAME.removesuffix(".weight")).product for model in (one, other)]
            assert torch.equal(*[getattr(product.packed(), attribute) for product in products]), attribute


def test_outputs_are_those_of_the_rounded_model(tmp_path: Path) -> None:
    _, int8 = rounded(bundle_of("decoder", {}), tmp_path)
    token_BT = torch.tensor([[1, 5, 6, 7, 8]])
    plain, fast = load_folder(int8).model, allyouneed.load(int8).model
    with torch.no_grad():
        right, found = (model.step(token_BT, model.start())[0] for model in (plain, fast))
    assert (found - right).abs().max() < 0.05 * right.abs().max()  # activations are int8, too
    assert fast.parameter_count() == plain.parameter_count()
    for _ in range(2):
        right, found = (model.step(token_BT, model.start())[0] for model in (plain, fast))  # with gradients: float32
        torch.testing.assert_close(found, right)


@pytest.mark.skipif(kernels.build.library() is None, reason="no C compiler: nothing is packed")
def test_a_tied_embedding_reads_the_bytes_of_the_head(tmp_path: Path) -> None:
    _, int8 = rounded(bundle_of("decoder", {"tied": True}), tmp_path)
    table_VD, model = load_folder(int8).model.head.weight_VD, allyouneed.load(int8).model
    token_BT = torch.tensor([[1, 5, 6], [0, 2, 5]])
    assert isinstance(model, Decoder)
    with torch.no_grad():
        assert torch.equal(model.target.look_up(token_BT), table_VD[token_BT])
    stored_VD = dict(model.named_parameters())["target.weight_VD"]
    assert stored_VD.untyped_storage().nbytes() < stored_VD.numel()


def test_the_command_writes_and_replaces_such_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, int8 = rounded(bundle_of("encoder-decoder", {}), tmp_path)
    before = (int8 / "model.safetensors").read_bytes()
    assert run(["export", str(plain), "--to", "int8", "--out", str(int8)]) == 0
    assert (int8 / "model.safetensors").read_bytes() == before
    assert "matrices in int8" in capsys.readouterr().err
    assert run(["verify", str(int8)]) == 0
    with pytest.raises(ConfigError, match="would be lost"):
        export_folder(load_folder(int8), plain)
    assert run(["export", str(plain), "--to", "int8", "--out", str(tmp_path / "x"), "--quantization", "int8"]) == 2


@pytest.mark.parametrize("change", ["missing", "short", "type"])
def test_scales_that_do_not_fit_are_refused(change: str, tmp_path: Path) -> None:
    _, int8 = rounded(bundle_of("decoder", {}), tmp_path)
    tensors, scale = load_file(int8 / "model.safetensors"), f"{NAME}.scale"
    tensors[scale] = {"missing": tensors[scale], "short": tensors[scale][1:], "type": tensors[scale].double()}[change]
    if change == "missing":
        del tensors[scale]
    files = {path.name: path.read_bytes() for path in int8.iterdir() if path.name != "manifest.json"}
    with new_folder(tmp_path / "bad") as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        save_file(tensors, folder / "model.safetensors")
    for load in (load_folder, allyouneed.load):
        with pytest.raises(FolderError, match=r"scale should be|has dtype") as caught:
            load(tmp_path / "bad")
        assert "\n" not in str(caught.value)
