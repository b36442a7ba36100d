"""Checkpoints: everything a run needs to go on as if nothing had happened.

    run/checkpoints/step-00000123/   model.safetensors, optimizer.safetensors, ..., state.json, manifest.json

A checkpoint appears under its name only when it is whole (see `storage`). The last ones and the best one are kept; an
older one is removed only after a newer one is in place. A damaged one is reported, and the one before it is used.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from allyouneed.errors import FolderError
from allyouneed.storage import Sealed, discard, new_folder, open_folder, sweep, verify, write_tensors

STATE = "state.json"
FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})")
_PART = re.compile(r"[a-z][a-z0-9_-]*")

Parts = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory."""

    step: int
    best: bool  # whether it was the best one when it was saved
    tensors: Parts  # on the CPU
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run. Whoever saves holds the lock of the run folder (`storage.lock`)."""

    def __init__(self, folder: Path, keep: int = 2, report: Callable[[str], None] | None = None) -> None:
        """`folder` is the run's; `report` is told of every damaged checkpoint (`warnings` keeps the same lines)."""
        if keep < 1:
            raise ValueError(f"keep={keep}: at least one checkpoint must be kept")
        self.folder = folder / "checkpoints"
        self.keep = keep
        self.warnings: list[str] = []
        self._report = report
        sweep(folder)
        sweep(self.folder)

    def save(
        self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], best: bool
    ) -> Path:
        """Writes one checkpoint (a safetensors file for each part, and the state as JSON), then removes old ones."""
        path = self.folder / f"step-{step:08d}"
        head = {"format": FORMAT, "step": step, "best": best, "parts": sorted(tensors), "state": dict(state)}
        with new_folder(path) as temporary:
            for part, named in tensors.items():
                if not _PART.fullmatch(part):
                    raise ValueError(f"{part!r} cannot name a part of a checkpoint")
                write_tensors(temporary / f"{part}.safetensors", named)
            (temporary / STATE).write_text(json.dumps(head, indent=1) + "\n", encoding="utf-8")
        self._remove_old(step)
        return path

    def latest(self) -> Path | None:
        """The newest checkpoint of which every byte is as it was written; None if there is none at all."""
        paths = self._paths()
        for path in reversed(paths):
            if self._is_good(path):
                return path
        if paths:
            raise FolderError(f"{self.folder}: all {len(paths)} checkpoints are damaged; start with a new run folder")
        return None

    def best(self) -> Path | None:
        """The newest undamaged checkpoint that was the best one when it was saved."""
        for path in reversed(self._paths()):
            if _was_best(path) and self._is_good(path):
                return path
        return None

    def load(self, path: Path) -> Checkpoint:
        """Reads a checkpoint, comparing every byte with its manifest."""
        return load_checkpoint(path)

    def _is_good(self, path: Path) -> bool:
        try:
            _head(verify(path))
        except FolderError as error:
            line = f"{error}; this checkpoint is passed over"
            self.warnings.append(line)
            if self._report is not None:
                self._report(line)
            return False
        return True

    def _paths(self) -> list[Path]:
        return checkpoint_paths(self.folder)

    def _remove_old(self, step: int) -> None:
        """Keeps the last ones and the best. Steps after the one just saved are damaged: the run went back."""
        paths = self._paths()
        now = paths.index(self.folder / f"step-{step:08d}")
        best = next((path for path in reversed(paths[: now + 1]) if _was_best(path)), None)
        kept = {best, *paths[max(0, now + 1 - self.keep) : now + 1]}
        for path in paths:
            if path not in kept:
                discard(path)


def checkpoint_paths(folder: Path) -> list[Path]:
    """All checkpoints in a folder, oldest first. A link is none."""
    if not folder.is_dir():
        return []
    numbered = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir() if not path.is_symlink()]
    return [path for _, path in sorted((int(match[1]), path) for match, path in numbered if match)]


def load_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint, every byte compared with its manifest."""
    sealed = open_folder(path)
    head = _head(sealed)
    tensors = {part: sealed.read_tensors(f"{part}.safetensors") for part in head["parts"]}
    return Checkpoint(head["step"], head["best"], tensors, head["state"])


def _head(sealed: Sealed) -> dict[str, Any]:
    head = sealed.read_json(STATE)
    fields = {"format": int, "step": int, "best": bool, "parts": list, "state": dict}
    if not isinstance(head, dict) or any(not isinstance(head.get(name), kind) for name, kind in fields.items()):
        raise FolderError(f"{sealed.path}: is not a checkpoint")
    if head["format"] != FORMAT:
        raise FolderError(f"{sealed.path}: format {head['format']}; this version of allyouneed reads format {FORMAT}")
    missing = [part for part in head["parts"] if f"{part}.safetensors" not in sealed.files]
    if missing:
        raise FolderError(f"{sealed.path}: {missing[0]}.safetensors is missing")
    return head


def _was_best(path: Path) -> bool:
    try:
        return bool(_head(open_folder(path))["best"])
    except FolderError:
        return False
