"""Checks of a run folder."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

from allyouneed.errors import FolderError, UserError
from allyouneed.folder import load_folder
from allyouneed.storage import ASIDE, MANIFEST, TEMPORARY, is_locked, verify
from allyouneed.storage.checkpoints import checkpoint_paths, load_checkpoint
from allyouneed.training.log import read_log
from allyouneed.training.recipe_files import read_stored_recipe
from allyouneed.verification.finding import Finding, attempt
from allyouneed.verification.model_folder import check_finite, check_model
from allyouneed.weights import model_tensors
from allyouneed.words import counted

RUN_FILES = ("recipe.toml", "checkpoints")


def is_run_folder(path: Path) -> bool:
    """Return whether a path is a run folder."""
    return path.is_dir() and not (path / MANIFEST).exists() and any((path / name).exists() for name in RUN_FILES)


def check_run(path: Path, with_scores: bool) -> Iterator[Finding]:
    if is_locked(path):
        yield Finding("lock", str(path), "skipped", "a process is training in it now: what follows may be out of date")
    if (path / "recipe.toml").exists():
        yield attempt(
            "recipe", path / "recipe.toml", lambda: f"task {read_stored_recipe(path / 'recipe.toml').task.type}"
        )
    else:
        yield Finding("recipe", str(path / "recipe.toml"), "failed", "is missing")
    yield attempt("log", path / "log.jsonl", lambda: _log(path / "log.jsonl"))
    model: dict[str, torch.Tensor] | None = None
    links = sorted(entry for entry in path.iterdir() if entry.is_symlink())
    for entry in links:
        yield Finding("links", str(entry), "failed", "is a link; a run folder must hold its files itself")
    if path / "model" in links:
        pass
    elif (path / "model").exists():
        yield from check_model(path / "model", with_scores)
        with suppress(UserError):  # reported above
            model = model_tensors(load_folder(path / "model").model)
    else:
        yield Finding("model", str(path / "model"), "skipped", "not written yet: the run has not ended")
    if (path / "adapter").is_dir() and path / "adapter" not in links:
        yield from check_model(path / "adapter", with_scores)
    yield from _checkpoints(path, model)
    if (path / "data" / "prepared").exists():
        prepared = path / "data" / "prepared"
        yield attempt("data", prepared, lambda: counted(len(verify(prepared).files), "file"))
    for left in sorted([*path.rglob(f"{TEMPORARY}*"), *path.rglob(f"{ASIDE}*")]):
        yield Finding("leftover", str(left), "skipped", "unfinished; the next `allyouneed train` removes it")


def _log(path: Path) -> str:
    records = read_log(path)
    steps = [record["step"] for record in records if isinstance(record.get("step"), int)]
    if steps != sorted(steps):
        raise FolderError("its steps are not in order")
    return f"{counted(len(records), 'record')} up to step {max(steps, default=0):,}"


def _checkpoints(path: Path, model: dict[str, torch.Tensor] | None) -> Iterator[Finding]:
    for checkpoint in checkpoint_paths(path / "checkpoints"):
        yield attempt("checkpoint", checkpoint, partial(_checkpoint, checkpoint, model))
    for link in sorted(link for link in (path / "checkpoints").glob("step-*") if link.is_symlink()):
        yield Finding("checkpoint", str(link), "failed", "is a link; a run folder must hold its checkpoints itself")


def _checkpoint(path: Path, model: dict[str, torch.Tensor] | None) -> str:
    loaded = load_checkpoint(path)
    for part, tensors in loaded.tensors.items():
        finding = check_finite(path / f"{part}.safetensors", tensors)
        if finding.verdict == "failed":
            raise FolderError(f"{part}.safetensors: {finding.detail}")
    if model is not None:
        own = {name: (tensor.shape, tensor.dtype) for name, tensor in model.items()}
        found = {name: (tensor.shape, tensor.dtype) for name, tensor in loaded.tensors.get("model", {}).items()}
        if own != found:
            raise FolderError("its tensors are not those of the model folder")
    fits = "" if model is None else "; fits the model"
    return f"step {loaded.step:,}, {', '.join(sorted(loaded.tensors))}: unchanged{fits}"
