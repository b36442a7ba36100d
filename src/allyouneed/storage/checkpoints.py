"""Read checkpoints: to resume their run, or to use the weights of a run that is not finished.

`training/checkpoint.py` describes the files and writes them.
"""

import hashlib
import re
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allyouneed.errors import FolderError
from allyouneed.storage.locks import is_locked
from allyouneed.storage.sealed import Sealed, open_folder

if TYPE_CHECKING:
    from torch import Tensor

STATE = "state.json"
FORMAT = 1
MOST_SHARDS = 4096
ATTEMPTS, WAIT = 5, 0.2  # at reading the checkpoints of a running run, which removes old ones; seconds in between
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory."""

    step: int
    best: bool  # whether it was the best one when it was saved
    tensors: "dict[str, dict[str, Tensor]]"  # on the CPU
    state: dict[str, Any]
    sha256: str  # of the parts that were read


def checkpoint_paths(folder: Path) -> list[Path]:
    """Return all checkpoints in a folder, oldest first. Links are ignored."""
    if not folder.is_dir():
        return []
    numbered = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir() if not path.is_symlink()]
    return [path for _, path in sorted((int(match[1]), path) for match, path in numbered if match)]


def load_checkpoint(path: Path, parts: Collection[str] | None = None) -> Checkpoint:
    """Return a checkpoint after comparing every byte with its manifest. `parts`: read only these."""
    sealed = open_folder(path)
    head = checkpoint_head(sealed)
    wanted = [part for part in head["parts"] if parts is None or part in parts]
    tensors = {part: _read_part(sealed, part, head.get("shards", 1)) for part in wanted}
    return Checkpoint(head["step"], head["best"], tensors, head["state"], _sha256(sealed, wanted, head))


def usable_checkpoint(run: Path) -> Checkpoint:
    """Return the weights of a run that may be running: its best checkpoint, or the newest if none was evaluated.

    Damaged checkpoints are passed over.
    """
    for attempt in range(1, ATTEMPTS + 1):
        newest = checkpoint_paths(run / "checkpoints")[::-1]
        problem = "has not saved a checkpoint yet; wait until it has"
        for path in [*filter(was_best, newest), *newest]:
            try:
                return load_checkpoint(path, ("model", "average"))
            except FolderError as error:
                problem = f"has no intact checkpoint: {error}"
        if not newest or attempt == ATTEMPTS or not is_locked(run):
            break
        time.sleep(WAIT)
    raise FolderError(f"{run}: a run that {problem}")


def averaged_weights(checkpoint: Checkpoint) -> "dict[str, Tensor]":
    """Return the weights that were evaluated: the mean of the averaged copies, if there are any."""
    import torch

    copies: dict[str, list[Tensor]] = {}
    for key, tensor in checkpoint.tensors.get("average", {}).items():
        copies.setdefault(key.partition("/")[2], []).append(tensor)
    for name, found in copies.items():
        if len({tensor.shape for tensor in found}) > 1:
            raise FolderError(f"averaged weights of step {checkpoint.step}: {name} has several shapes")
    means = {name: torch.stack(found).mean(0) for name, found in copies.items()}
    return {**checkpoint.tensors.get("model", {}), **means}


def _sha256(sealed: Sealed, parts: Collection[str], head: dict[str, Any]) -> str:
    """Return a hash of the files of these parts, from their hashes in the manifest."""
    names = [name for part in parts for name in part_files(part, head.get("shards", 1))]
    return hashlib.sha256("".join(sealed.files[name].sha256 for name in names).encode("ascii")).hexdigest()


def part_files(part: str, shards: int) -> list[str]:
    """Return the names of the files that hold a part."""
    if shards == 1:
        return [f"{part}.safetensors"]
    return [f"{part}-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)]


def _read_part(sealed: Sealed, part: str, shards: int) -> "dict[str, Tensor]":
    """Return the whole tensors of a part, concatenated from their shards."""
    import torch

    pieces: dict[str, list[Tensor]] = {}
    for file in part_files(part, shards):
        for name, tensor in sealed.read_tensors(file).items():
            pieces.setdefault(name, []).append(tensor)
    for name, found in pieces.items():
        alike = all(piece.ndim and piece.shape[1:] == found[0].shape[1:] for piece in found)
        if len(found) > 1 and not (alike and len(found) == shards and len({piece.dtype for piece in found}) == 1):
            raise FolderError(f"{sealed.path}: the {shards} pieces of {name} in {part} do not fit together")
    return {name: torch.cat(found) if len(found) > 1 else found[0] for name, found in pieces.items()}


def checkpoint_head(sealed: Sealed) -> dict[str, Any]:
    """Return the checked content of a checkpoint's state file."""
    head = sealed.read_json(STATE)
    fields = {"format": int, "step": int, "best": bool, "parts": list, "state": dict}
    if not isinstance(head, dict) or any(not isinstance(head.get(name), kind) for name, kind in fields.items()):
        raise FolderError(f"{sealed.path}: is not a checkpoint")
    if head["format"] != FORMAT:
        raise FolderError(f"{sealed.path}: format {head['format']}; this version of allyouneed reads format {FORMAT}")
    shards = head.get("shards", 1)
    if not isinstance(shards, int) or not 1 <= shards <= MOST_SHARDS:
        raise FolderError(f"{sealed.path / STATE}: shards={shards!r} should be between 1 and {MOST_SHARDS}")
    for name in (name for part in head["parts"] for name in part_files(part, shards)):
        if name not in sealed.files:
            raise FolderError(f"{sealed.path}: {name} is missing")
    return head


def was_best(path: Path) -> bool:
    """Return whether a checkpoint was the best one when it was saved; False if it cannot be read."""
    try:
        return bool(checkpoint_head(open_folder(path))["best"])
    except FolderError:
        return False
