"""The adapter folder: what LoRA has learnt, without the model that it belongs to.

adapter.json           the sha256 of the base's weights, rank, alpha
adapter.safetensors    A and B of each matrix (training/lora.py)
manifest.json          sha256 and size of each file
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from allyouneed.config import Config, parse
from allyouneed.errors import ConfigError, FolderError
from allyouneed.storage import new_folder, open_folder, write_tensors
from allyouneed.version import __version__

ADAPTER, WEIGHTS = "adapter.json", "adapter.safetensors"
A, B = ".lora_a", ".lora_b"  # suffixes of the names of tensors
FORMAT: Final = 1


class AdapterConfig(Config):
    """adapter.json."""

    format: Literal[1] = FORMAT
    allyouneed: str = __version__
    base: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # the sha256 of the weights of the model it belongs to
    folder: str  # where that model was
    rank: PositiveInt
    alpha: PositiveFloat


def save_adapter(path: Path, config: AdapterConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write an adapter folder; an existing one is replaced once the new one is complete."""
    with new_folder(path) as folder:
        (folder / ADAPTER).write_text(json.dumps(config.model_dump(), indent=1) + "\n", encoding="utf-8")
        write_tensors(folder / WEIGHTS, dict(tensors))


@torch.no_grad()
def merge_adapter(model: nn.Module, sha256: str, path: Path) -> str:
    """Add an adapter to the weights of a plain model; return the sha256 of the adapter.

    `path`: an adapter folder, or a run folder with one. `sha256`: that of the weights of the model. Raise FolderError
    if the adapter belongs to another model.
    """
    sealed = open_folder(path / "adapter" if (path / "adapter").is_dir() else path)
    if not {ADAPTER, WEIGHTS} <= sealed.files.keys():
        raise FolderError(f"{sealed.path}: has no {ADAPTER}; it is not an adapter folder")
    try:
        config = parse(AdapterConfig, sealed.read_json(ADAPTER), str(sealed.path / ADAPTER))
    except ConfigError as error:
        raise FolderError(str(error)) from None
    if config.base != sha256:
        raise FolderError(
            f"{sealed.path}: belongs to another model: {config.folder} (sha256 {config.base[:12]}), not to one of "
            f"sha256 {sha256[:12]}"
        )
    tensors, weights = sealed.read_tensors(WEIGHTS), dict(model.named_parameters())
    for name in sorted({name.removesuffix(A).removesuffix(B) for name in tensors}):
        a_RD, b_NR = tensors.get(name + A), tensors.get(name + B)
        shape = weights[name].shape if name in weights else None
        if a_RD is None or b_NR is None or shape is None or (len(b_NR), a_RD.shape[-1]) != tuple(shape):
            raise FolderError(f"{sealed.path / WEIGHTS}: {name}: is not a matrix of the model, or of another shape")
        weights[name].addmm_(b_NR, a_RD, alpha=config.alpha / config.rank)
    return sealed.files[WEIGHTS].sha256
