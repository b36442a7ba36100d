"""The adapter folder: what LoRA has learnt, without the model that it belongs to.

adapter.json           the sha256 of the base's weights, rank, alpha
adapter.safetensors    A and B of each matrix (training/lora.py)
manifest.json          sha256 and size of each file
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from allyouneed.config import Config, parse
from allyouneed.errors import ConfigError, FolderError
from allyouneed.storage import Entry, Sealed, new_folder, open_folder, write_tensors
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


@dataclass(frozen=True)
class Adapter:
    """A loaded adapter folder."""

    path: Path
    config: AdapterConfig
    thin: dict[str, tuple[Tensor, Tensor]]  # A (R, D) and B (N, R) by the name of their matrix
    sha256: str  # of the tensors
    files: Mapping[str, Entry]  # as listed in its manifest

    @property
    def scale(self) -> float:
        """What B A is multiplied with."""
        return self.config.alpha / self.config.rank

    @torch.no_grad()
    def merge(self, model: nn.Module) -> None:
        """Add the adapter to the weights of a plain model."""
        weights = dict(model.named_parameters())
        for name, (a_RD, b_NR) in self.thin.items():
            weights[name].addmm_(b_NR.to(weights[name]), a_RD.to(weights[name]), alpha=self.scale)


def _adapter_folder(path: Path) -> Path:
    """Return the adapter folder of a run folder, or the folder itself."""
    if (path / "adapter").is_dir():
        return path / "adapter"
    if (path / "model").is_dir():
        raise FolderError(f"{path}: a run without an adapter; train.lora makes one")
    return path


def _read_config(sealed: Sealed) -> AdapterConfig:
    if not {ADAPTER, WEIGHTS} <= sealed.files.keys():
        raise FolderError(f"{sealed.path}: has no {ADAPTER}; it is not an adapter folder")
    try:
        return parse(AdapterConfig, sealed.read_json(ADAPTER), str(sealed.path / ADAPTER))
    except ConfigError as error:
        raise FolderError(str(error)) from None


def adapter_config(path: Path) -> AdapterConfig:
    """Return what an adapter folder, or a run folder with one, holds beside its tensors."""
    return _read_config(open_folder(_adapter_folder(path)))


def read_adapter(path: Path, model: nn.Module, sha256: str) -> Adapter:
    """Load an adapter of a model whose weights have this sha256.

    `path`: an adapter folder, or a run folder with one. Raise FolderError if the adapter belongs to another model.
    """
    sealed = open_folder(_adapter_folder(path))
    config = _read_config(sealed)
    if config.base != sha256:
        raise FolderError(
            f"{sealed.path}: belongs to another model: {config.folder} (sha256 {config.base[:12]}), not to one of "
            f"sha256 {sha256[:12]}"
        )
    thin = pair_up(sealed.read_tensors(WEIGHTS), config.rank, model, sealed.path / WEIGHTS)
    return Adapter(sealed.path, config, thin, sealed.files[WEIGHTS].sha256, sealed.files)


def pair_up(
    tensors: Mapping[str, Tensor], rank: int, model: nn.Module, where: Path
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return A and B by the name of their matrix. Raise FolderError if the model has no such matrix."""
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for name in sorted({name.removesuffix(A).removesuffix(B) for name in tensors}):
        a_RD, b_NR = tensors.get(name + A), tensors.get(name + B)
        if a_RD is None or b_NR is None or a_RD.ndim != 2 or shapes.get(name) != (len(b_NR), a_RD.shape[1]):
            raise FolderError(f"{where}: {name}: is not a matrix of the model, or of another shape")
        if (len(a_RD), b_NR.shape[1:]) != (rank, (rank,)):  # their product is divided by it
            raise FolderError(
                f"{where}: {name}: A has {len(a_RD)} rows, and B the shape {tuple(b_NR.shape)}, but the rank is {rank}"
            )
        found[name] = a_RD, b_NR
    return found
