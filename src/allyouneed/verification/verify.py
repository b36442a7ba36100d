"""Whether a folder is what it says: `allyouneed verify`.

    model folder   the manifest lists what is there; every sha256; names, shapes and types; only numbers; ids have rows;
                   the model gives the scores that its card states
    export         the manifest and every sha256: it is another program that runs it
    run folder     the same for its model; the recipe; the log; every checkpoint, and that it fits the model; prepared
                   data; what a killed writer left behind

Nothing in the folder is changed: data is prepared in a temporary folder (with a copy of what the run has prepared).
"""

import math
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from allyouneed.errors import DataError, FolderError, UserError
from allyouneed.evaluation.settings import recipe_of
from allyouneed.folder import KINDS, SHORTLIST, Bundle, kind_of, load_folder, model_tensors
from allyouneed.storage import (
    ASIDE,
    MANIFEST,
    TEMPORARY,
    Sealed,
    compare_listing,
    is_locked,
    open_folder,
    read_manifest,
    verify,
)
from allyouneed.tasks import Score
from allyouneed.training.checkpoint import checkpoint_paths, load_checkpoint
from allyouneed.training.evaluate import evaluate
from allyouneed.training.log import read_log
from allyouneed.training.recipe_files import read_stored_recipe
from allyouneed.words import counted

# Of a score, if the sums were made in another order: a probability moves in its last digits; with it, now and then, a
# chosen word.
CLOSE = {"loss": 1e-4, "perplexity": 1e-3, "bits_per_char": 1e-4}
CLOSE_DECODED = 0.01
_SCORE = re.compile(r"- (\w+) = (-?[0-9.]+|nan|inf) `([^`]*)`")
_VERSION = re.compile(r"\|allyouneed:[^|]*")  # whoever measured: the number must be the same

Verdict = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str  # manifest, sha256, shapes, numbers, score, ...
    where: str
    verdict: Verdict
    detail: str


def verify_folder(path: Path, with_scores: bool = True) -> Iterator[Finding]:
    """Looks at a model folder, a run folder or an export, thing by thing."""
    if _is_run(path):
        yield from _run(path, with_scores)
    else:
        yield from _model(path, with_scores)


RUN_FILES = ("recipe.toml", "checkpoints")
EXPORTED = KINDS.keys() - {"model"}


def remedy(path: Path, failed: set[str]) -> str:
    """What to do about a folder in which these checks failed; nothing general can be said of others than these."""
    if failed.isdisjoint({"manifest", "sha256"}) or not path.is_dir():
        return ""
    run = path if _is_run(path) else path.parent if _is_run(path.parent) and path.name == "model" else None
    with suppress(FolderError):
        model = path if run is None else run / "model"
        if SHORTLIST in read_manifest(model):
            open_folder(model, without=[SHORTLIST]).check()  # all else is sound
            return f"; `allyouneed shortlist {path}` makes its shortlist again"
    if run is not None:
        # Without a manifest nobody knows whose files these are, and `train` leaves them alone.
        first = "" if (run / "model" / MANIFEST).is_file() else f"remove {run / 'model'}, then "
        recipe = run / "recipe.toml" if (run / "recipe.toml").is_file() else "RECIPE"
        return f"; {first}`allyouneed train {recipe} --out {run}` makes its model folder again"
    if kind_of(path) in EXPORTED:
        return "; export it again, or copy the whole folder again"
    return "; copy the whole folder again from where it came from"


def _is_run(path: Path) -> bool:
    return path.is_dir() and not (path / MANIFEST).exists() and any((path / name).exists() for name in RUN_FILES)


def _try(what: str, where: Path, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, str(where), "ok", look())
    except UserError as error:
        return _failed(what, where, error)


def _failed(what: str, where: Path, error: UserError) -> Finding:
    """What an error says about a place, or about a file inside it, which then is the place."""
    rest = str(error).removeprefix(str(where))
    file, colon, detail = rest.partition(": ")
    if rest != str(error) and colon and (not file or file.startswith("/")):
        return Finding(what, f"{where}{file}", "failed", detail)
    return Finding(what, str(where), "failed", str(error))


# --- a model folder --------------------------------------------------------------------------------------------------


def _model(path: Path, with_scores: bool) -> Iterator[Finding]:
    try:
        sealed, faults = compare_listing(path)
    except UserError as error:
        yield _failed("manifest", path, error)
        return
    for fault in faults:
        yield Finding("manifest", str(path / fault.name), "failed", fault.what)
    if not faults:
        yield Finding("manifest", str(path), "ok", f"{counted(len(sealed.files), 'file')}, all listed, none a link")
    sound = not faults
    for name in sorted(sealed.files.keys() - {fault.name for fault in faults}):
        finding = _try("sha256", path / name, partial(_same_bytes, sealed, name))
        sound &= finding.verdict == "ok"
        yield finding
    if not sound:
        return
    kind = kind_of(path)
    if kind in EXPORTED:
        yield Finding("export", str(path), "ok", f"{KINDS[kind][0]}, as it was written")
        return
    try:
        bundle = load_folder(path)
    except UserError as error:
        yield _failed("loads", path, error)
        return
    tensors = model_tensors(bundle.model)
    yield Finding(
        "loads", str(path), "ok", f"{counted(len(tensors), 'tensor')}, names, shapes and types as config.json says"
    )
    yield _finite(path / "model.safetensors", tensors)
    if (listed := bundle.shortlist) is not None:
        detail = f"{len(listed.words):,} words of {len(listed.ends):,} source words, in order, all in the vocabulary"
        yield Finding("shortlist", str(path / SHORTLIST), "ok", detail)
    yield _try("recipe", path / "config.json", lambda: f"task {recipe_of(bundle).task.type}")
    if with_scores:
        yield from _scores(bundle)


def _same_bytes(sealed: Sealed, name: str) -> str:
    sealed.check([name])
    return f"{sealed.files[name].size:,} bytes as they were written"


def _finite(where: Path, tensors: dict[str, torch.Tensor]) -> Finding:
    bad = [name for name, tensor in tensors.items() if tensor.is_floating_point() and not bool(tensor.isfinite().all())]
    if bad:
        return Finding("numbers", str(where), "failed", f"{bad[0]} holds what is no number ({len(bad)} such tensors)")
    return Finding(
        "numbers", str(where), "ok", f"{sum(tensor.numel() for tensor in tensors.values()):,} finite numbers"
    )


@dataclass(frozen=True)
class Recorded:
    """A score as it was written down."""

    name: str
    value: float
    signature: str
    exact: bool  # to the last digit (a log), or rounded to four decimals (a card)


def recorded_scores(bundle: Bundle) -> list[Recorded]:
    """What the card states, in full if the log of the run lies beside the model."""
    part = bundle.card.partition("\n## Scores\n")[2].partition("\n## ")[0]
    found = [_SCORE.fullmatch(line) for line in part.splitlines()]
    logged: dict[str, object] = {}
    if (bundle.path.parent / "log.jsonl").is_file():
        ends = [record for record in read_log(bundle.path.parent / "log.jsonl") if record.get("kind") == "end"]
        logged = ends[-1] if ends else {}
    scores = []
    for match in filter(None, found):
        rounded, full = float(match[2]), logged.get(match[1])
        exact = isinstance(full, float) and f"{full:.4f}" == match[2]
        scores.append(Recorded(match[1], full if isinstance(full, float) and exact else rounded, match[3], exact))
    return scores


def _scores(bundle: Bundle) -> Iterator[Finding]:
    where = str(bundle.path / "README.md")
    try:
        recorded = recorded_scores(bundle)
        if not recorded:
            yield Finding("score", where, "skipped", "the card states no score")
            return
        measured = {score.name: score for score in _measure(bundle)}
    except DataError as error:
        yield Finding("score", where, "skipped", f"the data is not here as it was: {error}")
        return
    except UserError as error:
        yield Finding("score", where, "failed", str(error))
        return
    for score in recorded:
        yield _compared(where, score, measured.get(score.name))


def _measure(bundle: Bundle) -> list[Score]:
    recipe, beside = recipe_of(bundle), bundle.path.parent / "data" / "prepared"
    with tempfile.TemporaryDirectory(prefix="allyouneed-") as temporary:
        if beside.is_dir():
            shutil.copytree(beside, Path(temporary) / "prepared", symlinks=True)
        data = recipe.task.prepare(Path(temporary), recipe.seed)
        if not data.codec.same_ids_as(bundle.codec):
            raise DataError("its tokenisers come out differently")
        data.codec = bundle.codec
        return evaluate(bundle.model, data, "valid", recipe.decode)


def _compared(where: str, recorded: Recorded, measured: Score | None) -> Finding:
    if measured is None:
        return Finding("score", where, "failed", f"{recorded.name} is stated, but its task has no such score")
    told, found, name = recorded.value, measured.value, recorded.name
    if _VERSION.sub("", recorded.signature) != _VERSION.sub("", measured.signature):
        detail = f"{name}: signature {recorded.signature} there, {measured.signature} here"
        return Finding("score", where, "skipped", detail)
    if found == told or (math.isnan(found) and math.isnan(told)):
        return Finding("score", where, "ok", f"{name} = {found!r}, the same to the last bit")
    if not recorded.exact and f"{found:.4f}" == f"{told:.4f}":
        return Finding("score", where, "ok", f"{name} = {found:.4f}, the same to the four decimals of the card")
    off, most = abs(found - told), CLOSE.get(name, CLOSE_DECODED) * max(1.0, abs(told))
    detail = (
        f"{name} = {found!r}, stated {told!r}: off by {off:.2g}, at most {most:.2g} may come from another order of sums"
    )
    return Finding("score", where, "ok" if off <= most else "failed", detail)


# --- a run folder ----------------------------------------------------------------------------------------------------


def _run(path: Path, with_scores: bool) -> Iterator[Finding]:
    if is_locked(path):
        yield Finding("lock", str(path), "skipped", "somebody is training in it now: what follows may be out of date")
    if (path / "recipe.toml").exists():
        yield _try("recipe", path / "recipe.toml", lambda: f"task {read_stored_recipe(path / 'recipe.toml').task.type}")
    else:
        yield Finding("recipe", str(path / "recipe.toml"), "failed", "is missing")
    yield _try("log", path / "log.jsonl", lambda: _log(path / "log.jsonl"))
    model: dict[str, torch.Tensor] | None = None
    links = sorted(entry for entry in path.iterdir() if entry.is_symlink())
    for entry in links:
        yield Finding("links", str(entry), "failed", "is a link; a run folder must hold its files itself")
    if path / "model" in links:
        pass
    elif (path / "model").exists():
        yield from _model(path / "model", with_scores)
        with suppress(UserError):  # has been said above
            model = model_tensors(load_folder(path / "model").model)
    else:
        yield Finding("model", str(path / "model"), "skipped", "is not written yet: the run has not ended")
    yield from _checkpoints(path, model)
    if (path / "data" / "prepared").exists():
        prepared = path / "data" / "prepared"
        yield _try("data", prepared, lambda: counted(len(verify(prepared).files), "file"))
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
        yield _try("checkpoint", checkpoint, partial(_checkpoint, checkpoint, model))
    for link in sorted(link for link in (path / "checkpoints").glob("step-*") if link.is_symlink()):
        yield Finding("checkpoint", str(link), "failed", "is a link; a run folder must hold its checkpoints itself")


def _checkpoint(path: Path, model: dict[str, torch.Tensor] | None) -> str:
    loaded = load_checkpoint(path)
    for part, tensors in loaded.tensors.items():
        finding = _finite(path / f"{part}.safetensors", tensors)
        if finding.verdict == "failed":
            raise FolderError(f"{part}.safetensors: {finding.detail}")
    if model is not None:
        own = {name: (tensor.shape, tensor.dtype) for name, tensor in model.items()}
        found = {name: (tensor.shape, tensor.dtype) for name, tensor in loaded.tensors.get("model", {}).items()}
        if own != found:
            raise FolderError("its tensors are not those of the model folder")
    fits = "" if model is None else "; fits the model"
    return f"step {loaded.step:,}, {', '.join(sorted(loaded.tensors))}: every byte as it was written{fits}"
