"""The model folder: everything needed to use a trained model, and nothing that can run code.

    config.json          the architecture and its sizes, and the task it was trained for
    model.safetensors    parameters (a tied matrix once) and persistent buffers
    tokenizer.json       and tokenizer.target.json, codec.json: text <-> ids
    shortlist.safetensors  the target tokens that a source allows, if `allyouneed shortlist` was run
    README.md            the model card: data, budget, scores with their signatures, recipe
    manifest.json        sha256 and size of each file

A folder is untrusted data: every byte is compared with the manifest, the architecture is looked up in the closed table
`MODELS`, and names, shapes and dtypes of all tensors must be exactly those of that architecture.

A run folder stands for the model in it. A run that is not finished has an `outline`, a model folder without weights and
card; its weights are those of its best checkpoint, or of the newest one if none was evaluated. Reading them does not
disturb the run. A folder in its `checkpoints` stands for the model with those weights.
"""

import html
import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import Field
from torch import Tensor

from allyouneed.adapter import ADAPTER, read_adapter
from allyouneed.config import Config, Tree, override, parse
from allyouneed.devices import check_device
from allyouneed.errors import ConfigError, FolderError
from allyouneed.inference.optimize import compact_parameters, is_optimized
from allyouneed.models import AnyModel, Model
from allyouneed.shortlist.table import Shortlist, read_shortlist
from allyouneed.sizes import Sizes
from allyouneed.storage import (
    LARGEST_TENSORS,
    MANIFEST,
    Entry,
    LazyTensors,
    Sealed,
    new_folder,
    open_folder,
    read_manifest,
    write_tensors,
)
from allyouneed.storage.checkpoints import (
    STATE,
    Checkpoint,
    averaged_weights,
    load_checkpoint,
    usable_checkpoint,
)
from allyouneed.tasks.base import FIRST_CLASS
from allyouneed.text.codec import Codec
from allyouneed.version import __version__
from allyouneed.weights import assign_weights, build_for, model_tensors
from allyouneed.words import printable

OUTLINE = "outline"  # in a run folder
CONFIG, WEIGHTS, CARD, SHORTLIST = "config.json", "model.safetensors", "README.md", "shortlist.safetensors"
FORMAT: Final = 1
# Kinds of folders with a manifest, by the files that only they have; exports by their names in `--to`.
KINDS: dict[str, tuple[str, set[str]]] = {
    "onnx": ("an export for ONNX runtimes", {"decoder.onnx"}),
    "ctranslate2": ("an export for CTranslate2", {"model.bin", CONFIG}),
    "model": ("a model folder", {"codec.json", WEIGHTS, CONFIG}),
    "hf": ("an export for transformers of Hugging Face", {WEIGHTS, CONFIG}),
    "adapter": ("an adapter (LoRA)", {ADAPTER}),
}
IMPORT = "`allyouneed import {} --out FOLDER` makes a model folder of it"

Ids = Annotated[int, Field(ge=0, le=1 << 28)]


class FolderSizes(Config):
    """`Sizes` as written in config.json."""

    source: Ids
    target: Ids
    shared: bool


class FolderConfig(Config):
    """config.json."""

    format: Literal[1]
    allyouneed: str
    model: AnyModel
    sizes: FolderSizes
    recipe: dict[str, Any]


@dataclass(frozen=True, repr=False)
class Bundle:
    """A loaded model folder."""

    path: Path
    model: Model  # in evaluation mode
    codec: Codec
    recipe: Tree  # task, model, training and decoding settings, as plain values
    card: str
    version: str  # of allyouneed that wrote it
    sha256: str = ""  # of the weights file
    shortlist: Shortlist | None = None  # for `decode.translate`, if the folder has one
    files: Mapping[str, Entry] = field(default_factory=dict)  # as listed in its manifest
    step: int | None = None  # of its checkpoint, if its run is not finished

    def __repr__(self) -> str:
        size = f"{self.model.config.type}, {self.model.parameter_count():,} parameters"
        return f"{type(self).__name__}({str(self.path)!r}: {size})"

    def _repr_html_(self) -> str:
        """Return a few lines of HTML for notebooks."""
        size = f"{self.model.config.type}, {self.model.parameter_count():,} parameters"
        lines = [str(self.path), str(self.recipe.get("about", "")), size]
        return "".join(f"<div>{html.escape(line)}</div>" for line in lines if line)


def save_folder(
    path: str | Path, model: Model, codec: Codec, recipe: Config, card: str, weights: LazyTensors | None = None
) -> Path:
    """Write a model folder; an existing one is replaced once the new one is complete.

    `weights`: those of a model that was built without them; each is computed when it is written.
    Raise ConfigError if the model is optimized for inference: its weights are stored in another layout.
    """
    if is_optimized(model):
        raise ConfigError("a model that is optimized for inference cannot be saved; load the plain one: load_folder")
    text = _config_text(model, recipe)
    with new_folder(Path(path)) as folder:
        (folder / CONFIG).write_text(text, encoding="utf-8")
        write_tensors(folder / WEIGHTS, weights or model_tensors(model))
        codec.save(folder)
        (folder / CARD).write_text(card, encoding="utf-8")
    return Path(path)


def save_outline(run: Path, model: Model, codec: Codec, recipe: Config) -> None:
    """Write what a run folder needs, beside a checkpoint, for its model to be used before the run is finished."""
    text = _config_text(model, recipe)
    with suppress(FolderError):
        if open_folder(run / OUTLINE).read_text(CONFIG) == text:
            return
    with new_folder(run / OUTLINE) as folder:
        (folder / CONFIG).write_text(text, encoding="utf-8")
        codec.save(folder)


def _config_text(model: Model, recipe: Config) -> str:
    built: Any = model  # every architecture keeps what it was built from
    config = FolderConfig(
        format=FORMAT,
        allyouneed=__version__,
        model=model.config,
        sizes=FolderSizes(**asdict(built.sizes)),
        recipe=recipe.model_dump(mode="json"),
    )
    return json.dumps(config.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def add_shortlist(bundle: Bundle, shortlist: Shortlist) -> None:
    """Add a shortlist to a model folder, by replacing the folder atomically.

    Raise FolderError if its files have changed since `bundle` was loaded: a shortlist belongs to one tokeniser.
    """
    sealed = open_folder(bundle.path, without=[SHORTLIST])
    for name in sorted(sealed.files.keys() | bundle.files.keys()):
        if name not in (SHORTLIST, CARD) and sealed.files.get(name) != bundle.files.get(name):
            raise FolderError(f"{sealed.path / name}: changed since the model was loaded; make the shortlist again")
    with new_folder(sealed.path) as folder:
        folder.chmod(0o700)  # until it gets the mode of the old one
        for name in sealed.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(sealed.read(name, LARGEST_TENSORS))
        write_tensors(folder / SHORTLIST, shortlist.tensors())
        (folder / MANIFEST).touch()  # created now, because writing it later keeps its mode
        _copy_owners(sealed.path, folder)


def _copy_owners(old: Path, new: Path) -> None:
    """Copy owners and modes from the old folder to the new one; new files get those of the weights."""
    for path in [*new.rglob("*"), new]:
        model = old / path.relative_to(new)
        known = (model if model.exists() else old / WEIGHTS).stat()
        with suppress(OSError):  # only root can change the owner
            os.chown(path, known.st_uid, known.st_gid)
        path.chmod(stat.S_IMODE(known.st_mode))


def load_folder(
    path: str | Path,
    device: str | torch.device = "cpu",
    sets: Sequence[str] = (),
    *,
    shortlist: bool = True,
    announce: bool = True,
    compact: bool = False,
    adapter: str | Path | None = None,
) -> Bundle:
    """Load the plain model of a model folder, or of a run folder, in evaluation mode.

    The model can be trained, hooked and inspected. `allyouneed.load` returns a faster one for inference. `sets` change
    settings that are not part of the weights (`model.mixer.memory=512`, `task.segment=128`). With `shortlist=False` the
    shortlist is not read, so that a damaged one does not matter. If a run is not finished, its best checkpoint is used,
    and with `announce` a line on standard error states this. With `compact`, weights stay mapped and in half precision:
    `optimize_for_inference` must follow at once, which packs them. `adapter`: a folder of LoRA whose matrices are added
    to the weights.

    Hooks run when a module is called. Decoding calls the encoder with all its modules, the head, and the decoder's
    attention, norms and linear layers. It does not call the model, the target embedding, the decoder, or the decoder's
    blocks, feed-forward layers, recurrences and convolutions: it uses their `advance` or `forward`. `model.step` calls
    all but the model.
    """
    if not isinstance(path, str | Path):
        raise FolderError(f"model folder: of type {type(path).__name__}; should be a path")
    check_device(device)
    folder = _model_folder(Path(path))
    if folder.name == OUTLINE and not (folder / WEIGHTS).exists():
        if adapter is not None:
            raise FolderError(f"{folder.parent}: not finished; an adapter belongs to a finished model")
        return _load_unfinished(folder, device, sets, announce)
    if (folder / STATE).is_file():
        if adapter is not None:
            raise FolderError(f"{folder}: a checkpoint; an adapter belongs to a finished model")
        return _load_checkpoint(folder, device, sets)
    sealed = open_folder(folder, without=[] if shortlist else [SHORTLIST])
    _require_kind(sealed)
    config, card = _read_config(sealed, sets), sealed.read_text(CARD) if CARD in sealed.files else ""
    compact = compact and torch.device(device).type == "cpu" and adapter is None
    tensors = sealed.map_tensors(WEIGHTS) if compact else sealed.read_tensors(WEIGHTS)
    model = _build(sealed, config, tensors, sealed.path / WEIGHTS, compact).to(device).eval()
    codec = _read_codec(sealed, config)
    sha256 = sealed.files[WEIGHTS].sha256
    if adapter is not None:
        read = read_adapter(Path(adapter), model, sha256)
        read.merge(model)
        sha256 = read.sha256
    listed = _read_shortlist(sealed, codec, config.sizes.target)
    return Bundle(sealed.path, model, codec, config.recipe, card, config.allyouneed, sha256, listed, sealed.files)


def _load_unfinished(outline: Path, device: str | torch.device, sets: Sequence[str], announce: bool) -> Bundle:
    """Return the model of a run that is not finished, with the weights of its best checkpoint."""
    saved = usable_checkpoint(outline.parent)
    which = "best" if saved.best else "newest"
    line = f"{outline.parent}: not finished; using its {which} checkpoint of step {saved.step:,}"
    if announce:
        print(printable(line), file=sys.stderr, flush=True)
    return _of_checkpoint(outline, saved, device, sets, line)


def _load_checkpoint(path: Path, device: str | torch.device, sets: Sequence[str]) -> Bundle:
    """Return the model of a run with the weights of one checkpoint, averaged as they were evaluated."""
    outline = path.resolve().parent.parent / OUTLINE
    if not outline.is_dir():
        raise FolderError(f"{path}: a checkpoint outside of its run folder, which holds its tokenizers")
    saved = load_checkpoint(path, ("model", "average"))
    return _of_checkpoint(outline, saved, device, sets, f"{path}: a checkpoint, of step {saved.step:,}")


def _of_checkpoint(
    outline: Path, saved: Checkpoint, device: str | torch.device, sets: Sequence[str], line: str
) -> Bundle:
    sealed = open_folder(outline)
    config = _read_config(sealed, sets)
    model = _build(sealed, config, averaged_weights(saved), outline.parent / "checkpoints", False)
    model = model.to(device).eval()
    codec = _read_codec(sealed, config)
    card = f"# {config.model.type}\n\n{line}\n"
    whole = (config.recipe, card, config.allyouneed, saved.sha256, None, sealed.files, saved.step)
    return Bundle(outline, model, codec, *whole)


def kind_of(path: Path) -> str | None:
    """Return which of `KINDS` a folder is, judged by its manifest alone; None if it is none of them."""
    try:
        files = set(read_manifest(path))
    except FolderError:
        return None
    files |= {WEIGHTS} if f"{WEIGHTS}.index.json" in files else set()  # in several files
    files |= {"decoder.onnx"} if "encoder.onnx" in files else set()  # an encoder alone
    return next((kind for kind, (_, own) in KINDS.items() if own <= files), None)


def _require_kind(sealed: Sealed) -> None:
    """Raise FolderError, with what to do, if a folder with a manifest is not a model folder."""
    kind, path = kind_of(sealed.path), sealed.path
    if kind in ("onnx", "ctranslate2", "adapter"):
        base = f"its base, and --adapter {path}" if kind == "adapter" else "the model that it was made from"
        raise FolderError(f"{path}: is {KINDS[kind][0]}, not a model folder; give {base}")
    for name in (CONFIG, WEIGHTS):
        if name not in sealed.files:
            raise FolderError(f"{path}: has no {name}; it is not a model folder")


def folder_head(path: str | Path) -> tuple[FolderConfig, Codec]:
    """Return what a model folder, or a run folder, holds beside its weights: its config and its codec."""
    sealed = open_folder(_model_folder(Path(path)))
    config = _read_config(sealed)
    return config, _read_codec(sealed, config)


def folder_recipe(path: str | Path) -> tuple[Tree, str]:
    """Return the recipe of a model folder, or of a run folder, and the sha256 of its weights."""
    sealed = open_folder(_model_folder(Path(path)))
    if sealed.path.name == OUTLINE and WEIGHTS not in sealed.files:
        return _read_config(sealed).recipe, usable_checkpoint(sealed.path.parent).sha256
    _require_kind(sealed)
    return _read_config(sealed).recipe, sealed.files[WEIGHTS].sha256


def _model_folder(path: Path) -> Path:
    """Return the folder itself, or in a run folder `model` or, until that is written, `outline`."""
    if not path.is_dir() or (path / MANIFEST).exists():
        return path
    for name in ("model", OUTLINE):
        if (path / name).is_symlink():
            raise FolderError(f"{path / name}: is a link; a run folder must hold its model itself")
        if (path / name).is_dir():
            return path / name
    if (path / "checkpoints").is_dir():
        raise FolderError(
            f"{path}: a run of an earlier version, not finished; the `allyouneed train` that began it resumes it"
        )
    if (path / "lock").exists() and ((path / "recipe.toml").exists() or (path / "data").is_dir()):
        raise FolderError(
            f"{path}: this run was stopped before its first checkpoint; the same `allyouneed train` resumes it"
        )
    if (path / CONFIG).is_file():
        raise FolderError(f"{path}: not a model folder, but perhaps one of Hugging Face; {IMPORT.format(path)}")
    raise FolderError(f"{path}: not a model folder: it has no {MANIFEST} and no folder named model")


def _read_config(sealed: Sealed, sets: Sequence[str] = ()) -> FolderConfig:
    where, tree = sealed.path / CONFIG, sealed.read_json(CONFIG)
    if not isinstance(tree, dict) or "format" not in tree:
        remedy = f"; {IMPORT.format(sealed.path)}" if isinstance(tree, dict) and "model_type" in tree else ""
        raise FolderError(f"{where}: is not the config of a model folder{remedy}")
    if tree["format"] != FORMAT:
        raise FolderError(
            f"{where}: format {tree['format']!r}; allyouneed {__version__} reads format {FORMAT}: is the folder newer?"
        )
    try:
        return parse(FolderConfig, _with_settings(tree, sets) if sets else tree, str(where))
    except (ConfigError, RecursionError) as error:
        raise FolderError(str(error)) from None


def _with_settings(tree: Tree, sets: Sequence[str]) -> Tree:
    """Return config.json with settings changed, in the architecture and in the recipe that repeats it."""
    recipe = override(tree.get("recipe", {}), sets)
    of_model = [pair for pair in sets if pair.startswith("model.")]
    return {**tree, **override({"model": tree.get("model")}, of_model), "recipe": recipe}


def _read_codec(sealed: Sealed, config: FolderConfig) -> Codec:
    for name in sealed.files.keys() - {WEIGHTS, SHORTLIST}:
        sealed.read(name)  # the codec opens its files itself; they are checked against the manifest here
    codec = Codec.load(sealed.path)
    _require_ids_fit(codec, config, sealed.path)
    return codec.in_tuned_languages(config.recipe.get("task"))


def _build(sealed: Sealed, config: FolderConfig, tensors: dict[str, Tensor], where: Path, compact: bool) -> Model:
    sizes = Sizes(**config.sizes.model_dump())
    try:
        model = build_for(lambda: config.model.build(sizes), tensors, f"the weights in {where.name}")
    except (ConfigError, ValueError) as error:
        raise FolderError(f"{sealed.path / CONFIG}: {error}") from None
    assign_weights(model, tensors, where, compact_parameters(model) if compact else frozenset())
    return model


def _read_shortlist(sealed: Sealed, codec: Codec, targets: int) -> Shortlist | None:
    if SHORTLIST not in sealed.files:
        return None
    if codec.source is None or codec.target is None or codec.classes is not None:
        raise FolderError(f"{sealed.path / SHORTLIST}: a shortlist, but the model does not translate")
    return read_shortlist(sealed.read_tensors(SHORTLIST), codec.source.size, targets, sealed.path / SHORTLIST)


def _require_ids_fit(codec: Codec, config: FolderConfig, where: Path) -> None:
    """Raise FolderError unless every id of the codec has a row in the model's tables."""
    sizes = config.sizes
    source_rows = sizes.target if config.model.kind == "decoder" else sizes.source  # a decoder has one table
    needs = [("source", codec.source.size if codec.source else 0, source_rows)]
    if codec.classes is not None:
        first = FIRST_CLASS if config.model.kind == "decoder" else 0
        needs.append(("classes", first + len(codec.classes), sizes.target))
    elif codec.target is not None:
        needs.append(("target", codec.target.size, sizes.target))
    for what, ids, rows in needs:
        if ids > rows:
            raise FolderError(f"{where}: {what}: {ids} ids, but the model's table has {rows} rows")
