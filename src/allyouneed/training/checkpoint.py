"""Checkpoints: everything a run needs to resume as if it had not been interrupted.

    run/checkpoints/step-00000123/   model.safetensors, optimizer.safetensors, ..., state.json, manifest.json

If the weights are sharded, each process writes its rows (`model-00001-of-00002.safetensors`). A tensor is the
concatenation of its shards; tensors that are not sharded are in the first file. Any number of processes can read such a
checkpoint.

A checkpoint appears under its name only when it is complete (see `storage`). The last ones and the best one are kept;
an older one is removed only after a newer one is in place. A damaged one is reported, and the one before it is used.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from allyouneed.errors import FolderError
from allyouneed.storage import discard, new_folder, sweep, verify, write_tensors, writing
from allyouneed.storage.checkpoints import (
    FORMAT,
    STATE,
    Checkpoint,
    checkpoint_head,
    checkpoint_paths,
    load_checkpoint,
    part_files,
    was_best,
)

_PART = re.compile(r"[a-z][a-z0-9_-]*")


class Checkpoints:
    """The checkpoints of one run. Saving requires the lock of the run folder (`storage.lock`)."""

    def __init__(
        self, folder: Path, keep: int = 2, report: Callable[[str], None] | None = None, tidy: bool = True
    ) -> None:
        """`folder` is the run's; `report` receives a line for every damaged checkpoint (`warnings` keeps them too).

        `tidy`: remove the temporary files of killed writers; only the process that holds the lock may do so.
        """
        if keep < 1:
            raise ValueError(f"keep={keep}: at least one checkpoint must be kept")
        self.folder = folder / "checkpoints"
        self.keep = keep
        self.warnings: list[str] = []
        self._report = report
        if tidy:
            sweep(folder)
            sweep(self.folder)

    def save(
        self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], best: bool
    ) -> Path:
        """Write one checkpoint (a safetensors file for each part, and the state as JSON), then remove old ones."""
        with self.writing(step, sorted(tensors), state, best) as temporary:
            write_parts(temporary, tensors)
        return self.folder / f"step-{step:08d}"

    @contextmanager
    def writing(
        self, step: int, parts: list[str], state: Mapping[str, Any], best: bool, shards: int = 1
    ) -> Iterator[Path]:
        """Yield a temporary folder for `write_parts`; at the end of the block it becomes a checkpoint."""
        head = {"format": FORMAT, "step": step, "best": best, "parts": parts, "state": dict(state)}
        head |= {"shards": shards} if shards > 1 else {}
        with new_folder(self.folder / f"step-{step:08d}") as temporary:
            yield temporary
            (temporary / STATE).write_text(json.dumps(head, indent=1) + "\n", encoding="utf-8")
        self._remove_old(step)

    def latest(self) -> Path | None:
        """Return the newest intact checkpoint, or None if there is none at all."""
        paths = self._paths()
        for path in reversed(paths):
            if self._is_good(path):
                return path
        if paths:
            raise FolderError(f"{self.folder}: all {len(paths)} checkpoints are damaged; start with a new run folder")
        return None

    def best(self) -> Path | None:
        """Return the newest intact checkpoint that was the best one when it was saved."""
        for path in reversed(self._paths()):
            if was_best(path) and self._is_good(path):
                return path
        return None

    def load(self, path: Path) -> Checkpoint:
        """Read a checkpoint, and compare every byte with its manifest."""
        return load_checkpoint(path)

    def _is_good(self, path: Path) -> bool:
        try:
            checkpoint_head(verify(path))
        except FolderError as error:
            line = f"{error}; this checkpoint is skipped"
            self.warnings.append(line)
            if self._report is not None:
                self._report(line)
            return False
        return True

    def _paths(self) -> list[Path]:
        return checkpoint_paths(self.folder)

    def _remove_old(self, step: int) -> None:
        """Keep the last checkpoints and the best.

        Checkpoints after the step just saved are damaged: the run resumed from an earlier one. Remove them.
        """
        paths = self._paths()
        now = paths.index(self.folder / f"step-{step:08d}")
        best = next((path for path in reversed(paths[: now + 1]) if was_best(path)), None)
        kept = {best, *paths[max(0, now + 1 - self.keep) : now + 1]}
        for path in paths:
            if path not in kept:
                discard(path)


def write_parts(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], shard: int = 0, shards: int = 1) -> None:
    """Write one safetensors file for each part (model, optimizer, ...); if sharded, only the rows of this shard."""
    for part, named in tensors.items():
        if not _PART.fullmatch(part):
            raise ValueError(f"{part!r} cannot name a part of a checkpoint")
        path = folder / part_files(part, shards)[shard]
        with writing(path):
            write_tensors(path, named)
