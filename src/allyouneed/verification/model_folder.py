"""Checks of a model folder or an export."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from allyouneed import adapter
from allyouneed.errors import UserError
from allyouneed.evaluation.settings import recipe_of
from allyouneed.folder import KINDS, SHORTLIST, kind_of, load_folder
from allyouneed.storage import Sealed, compare_listing
from allyouneed.verification.card_scores import check_scores
from allyouneed.verification.finding import Finding, attempt, failed
from allyouneed.weights import model_tensors
from allyouneed.words import counted

EXPORTED = KINDS.keys() - {"model", "adapter"}


def check_model(path: Path, with_scores: bool) -> Iterator[Finding]:
    try:
        sealed, faults = compare_listing(path)
    except UserError as error:
        yield failed("manifest", path, error)
        return
    for fault in faults:
        yield Finding("manifest", str(path / fault.name), "failed", fault.what)
    if not faults:
        yield Finding("manifest", str(path), "ok", f"{counted(len(sealed.files), 'file')}, all listed, none a link")
    sound = not faults
    for name in sorted(sealed.files.keys() - {fault.name for fault in faults}):
        finding = attempt("sha256", path / name, partial(_same_bytes, sealed, name))
        sound &= finding.verdict == "ok"
        yield finding
    if not sound:
        return
    kind = kind_of(path)
    if kind in EXPORTED:
        yield Finding("export", str(path), "ok", f"{KINDS[kind][0]}, unchanged")
        return
    if kind == "adapter":
        yield attempt("adapter", path, partial(_describe_adapter, path))
        yield check_finite(path / adapter.WEIGHTS, sealed.read_tensors(adapter.WEIGHTS))
        return
    try:
        bundle = load_folder(path)
    except UserError as error:
        yield failed("loads", path, error)
        return
    tensors = model_tensors(bundle.model)
    yield Finding(
        "loads", str(path), "ok", f"{counted(len(tensors), 'tensor')}, names, shapes and types as in config.json"
    )
    yield check_finite(path / "model.safetensors", tensors)
    if (listed := bundle.shortlist) is not None:
        detail = f"{len(listed.words):,} words of {len(listed.ends):,} source words, in order, all in the vocabulary"
        yield Finding("shortlist", str(path / SHORTLIST), "ok", detail)
    yield attempt("recipe", path / "config.json", lambda: f"task {recipe_of(bundle).task.type}")
    if with_scores:
        yield from check_scores(bundle)


def _describe_adapter(path: Path) -> str:
    config = adapter.adapter_config(path)
    return f"of rank {config.rank}, for {config.folder} (sha256 {config.base[:12]})"


def _same_bytes(sealed: Sealed, name: str) -> str:
    sealed.check([name])
    return f"{sealed.files[name].size:,} bytes, unchanged"


def check_finite(where: Path, tensors: dict[str, torch.Tensor]) -> Finding:
    bad = [name for name, tensor in tensors.items() if tensor.is_floating_point() and not bool(tensor.isfinite().all())]
    if bad:
        return Finding(
            "numbers", str(where), "failed", f"{bad[0]} has NaN or infinite values ({len(bad)} such tensors)"
        )
    return Finding(
        "numbers", str(where), "ok", f"{sum(tensor.numel() for tensor in tensors.values()):,} finite numbers"
    )
