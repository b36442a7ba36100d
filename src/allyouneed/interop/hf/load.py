"""Imports a Hugging Face folder as a model folder: settings, vocabulary, weights, task, in this order.

Anything that is not understood raises an error that names it: a field of the config, an unexpected or missing weight, a
tokenizer that cannot be renumbered. Nothing in the folder is executed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allyouneed.config import Tree, parse
from allyouneed.errors import ConfigError, FolderError
from allyouneed.folder import KINDS, folder_recipe, kind_of, save_folder
from allyouneed.interop.hf.architectures import ARCHITECTURES
from allyouneed.interop.hf.architectures.base import Architecture
from allyouneed.interop.hf.chat import read_chat_template
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.files import CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS, ForeignFolder
from allyouneed.interop.hf.rules import JoinedTensors, Rule
from allyouneed.interop.hf.sentences import sentences_of
from allyouneed.interop.hf.spm import has_pieces, read_pieces
from allyouneed.interop.hf.vision import picture_codec, picture_vocabulary, read_preprocessor
from allyouneed.interop.hf.vocabulary import Foreign, ForeignTokenizer, Parts, Vocabulary, language_tags, renumber
from allyouneed.interop.output_folder import require_safe_output
from allyouneed.models import Model, ModelConfig
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.encoder import EncoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.models.vit import ViTConfig
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.text.lines import NO_DATA
from allyouneed.text.origin import Origin
from allyouneed.text.pictures import PictureConfig
from allyouneed.training.recipe import Recipe
from allyouneed.training.tuning import bounded_lengths
from allyouneed.version import __version__
from allyouneed.weights import assign_weights, build_for, model_tensors, require_same_tensors

ABOUT = ", imported from Hugging Face"  # suffix of `about` in the recipe of an imported model
Frame = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Imported:
    """An imported model with its codec, recipe and notes."""

    outline: Model  # without weights
    weights: JoinedTensors
    where: Path
    codec: Codec
    vocabulary: Vocabulary
    recipe: Recipe
    type: str
    notes: list[str]

    @cached_property
    def model(self) -> Model:
        """Return the model in float32."""
        assign_weights(self.outline, {name: self.weights.compute(name) for name in self.weights.specs()}, self.where)
        return self.outline


def import_folder(folder: Path, out: Path) -> list[str]:
    """Write the model folder and return notes for the user."""
    require_safe_output(out, folder, "model", _was_imported)
    read = read_folder(folder)
    save_folder(out, read.outline, read.codec, read.recipe, _card(read), read.weights)
    return read.notes


def _was_imported(folder: Path) -> bool:
    """Return True if the model folder is an unmodified import, which can be repeated."""
    try:
        recipe, _ = folder_recipe(folder)
    except FolderError:  # unreadable: its origin is unknown
        return False
    return recipe.get("start") is None and str(recipe.get("about")).endswith(ABOUT)


def read_folder(folder: Path) -> Imported:
    """Read the model of a Hugging Face folder."""
    foreign = ForeignFolder(folder)
    _refuse_ours(folder)
    tree = foreign.read_config()
    fields = Fields(tree, foreign.path / CONFIG)
    architecture, name = _architecture(fields)
    if architecture.pictures:
        return _read_pictures(foreign, tree, fields, architecture, name)
    generation = _generation(foreign)
    size = fields.number("vocab_size")
    tokens, ends = _tokens(fields, generation, size)
    config = _settings(architecture, fields, name)
    if ends and not isinstance(config, DecoderConfig):
        raise FolderError(f"{fields.where}: eos_token_id: several ids; only a language model can have more than one")
    beams = [_known_search(place, tokens) for place in (generation, fields)]  # `generate` prefers the first
    notes = _notes([*fields.finish(), *generation.rest()])
    classes = _classes(tree, config, name, fields.where)
    named = _tokenizer_settings(foreign)
    tokenizer = _tokenizer(foreign, named)
    frame, parts = _parts(tokenizer, tokens, config, architecture.framed, fields.where)
    vocabulary = renumber(tokenizer, replace(parts, unknown=tokenizer.unknown(named)), size, len(classes or ()))
    if vocabulary.rows.hidden and not isinstance(config, EncoderConfig) and not getattr(config, "output_bias", True):
        config = config.model_copy(update={"output_bias": "fixed"})  # training must not give others a bias
    model, weights = _model(architecture, config, vocabulary, foreign)
    origin = _origin(tree, vocabulary, foreign, _classifier(architecture, tree, config))
    sentences = sentences_of(tree, architecture.type)
    codec = replace(_codec(config, vocabulary, frame, classes, name), origin=origin, sentences=sentences)
    if isinstance(config, DecoderConfig):
        chat, left_out = read_chat_template(foreign, named, tokenizer, vocabulary)
        more = tuple(vocabulary.ours[number] for number in ends)
        codec, notes = replace(codec, chat=chat, ends=more, bos=bool(frame and frame[0])), [*notes, *left_out]
    elif isinstance(config, EncoderDecoderConfig) and tokens["decoder_start"] == tokens["eos"]:
        tags = language_tags(tokenizer, vocabulary)
        codec, notes = replace(codec, tags=tags), [*notes, *_tag_notes(tags)]
    recipe = _recipe(config, name, beams[0] or beams[1])
    return Imported(model, weights, foreign.path, codec, vocabulary, recipe, architecture.type, notes)


def _read_pictures(
    foreign: ForeignFolder, tree: Tree, fields: Fields, architecture: Architecture, name: str
) -> Imported:
    """Read a model of images, which has no vocabulary."""
    settings = _settings(architecture, fields, name)
    assert isinstance(settings, ViTConfig)
    config, picture, notes = read_preprocessor(foreign, settings)
    fields.finish()
    classes = _classes(tree, config, name, fields.where) or ()
    vocabulary = picture_vocabulary(picture, len(classes))
    model, weights = _model(architecture, config, vocabulary, foreign)
    recipe = _recipe(config, name, None, picture)
    codec = picture_codec(vocabulary, classes)
    return Imported(model, weights, foreign.path, codec, vocabulary, recipe, architecture.type, notes)


def _refuse_ours(folder: Path) -> None:
    """Raise FolderError for a folder that is ours already, or an export for another engine."""
    for one in (folder, folder / "model"):  # a run folder
        if kind_of(one) == "model":
            raise FolderError(f"{one}: is a model folder of allyouneed already; use it directly")
    if (kind := kind_of(folder)) in ("ctranslate2", "onnx"):
        raise FolderError(f"{folder}: is {KINDS[kind][0]}; import reads Hugging Face folders")


def _architecture(fields: Fields) -> tuple[Architecture, str]:
    kind, names = fields.get("model_type"), fields.get("architectures")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise FolderError(f"{fields.where}: model_type: {str(kind)[:60]!r} is not supported; supported: {known}")
    found = ARCHITECTURES[kind]
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    if not isinstance(name, str) or name not in found.classes:
        raise FolderError(f"{fields.where}: architectures: {names!r}; should name one of {', '.join(found.classes)}")
    return found, name


def _settings(architecture: Architecture, fields: Fields, name: str) -> ModelConfig:
    try:
        return architecture.read(fields, name)
    except ValueError as error:  # a value that our settings refuse
        raise FolderError(f"{fields.where}: {str(error).splitlines()[-1].strip()}") from None


def _generation(foreign: ForeignFolder) -> Fields:
    return Fields(foreign.read_json(GENERATION) if foreign.has(GENERATION) else {}, foreign.path / GENERATION)


def _tokenizer_settings(foreign: ForeignFolder) -> Tree:
    """Return tokenizer_config.json, or {}."""
    if not foreign.has(TOKENIZER_CONFIG):
        return {}
    tree = foreign.read_json(TOKENIZER_CONFIG)
    Fields(tree, foreign.path / TOKENIZER_CONFIG)  # refuses references to code
    return tree


def _tokenizer(foreign: ForeignFolder, settings: Tree) -> Foreign:
    if has_pieces(foreign):
        return read_pieces(foreign, settings)
    return ForeignTokenizer(foreign.read_tokenizer(), foreign.path / TOKENIZER)


def _tokens(fields: Fields, generation: Fields, size: int) -> tuple[dict[str, int | None], tuple[int, ...]]:
    """Return the token of each role, and further tokens that end a text.

    They are those of `generate`: the generation config overrides the model's.
    """
    found: dict[str, tuple[int, ...]] = {}
    for key in ("pad", "bos", "eos", "decoder_start"):
        name = f"{key}_token_id"
        for place in (fields, generation):
            given = place.tokens(name)
            if given and max(given) >= size:
                raise FolderError(f"{place.where}: {name}: {max(given)}, but the model has {size:,} tokens")
            if len(given) > 1 and key != "eos":
                raise FolderError(f"{place.where}: {name}: {list(given)}; should be one id")
            found[key] = given or found.get(key, ())
    return {key: next(iter(given), None) for key, given in found.items()}, found["eos"][1:]


def _known_search(fields: Fields, tokens: dict[str, int | None]) -> Any:
    """Return the beam size. Suppressing PAD and BOS counts as understood: every search here does it."""
    never = {tokens["pad"], tokens["decoder_start"]} - {None}
    if fields.get("bad_words_ids") in [[[number]] for number in never]:
        fields.ignore(["bad_words_ids"])
    else:
        fields.leave("bad_words_ids")
    return fields.get("num_beams")


def _parts(
    tokenizer: Foreign, tokens: dict[str, int | None], config: ModelConfig, framed: bool, where: Path | str
) -> tuple[tuple[list[int], list[int]] | None, Parts]:
    """Return the frame of a text if it is not the default, and the roles of the special tokens."""
    begin, end = tokens["bos"], tokens["eos"]
    frame = tokenizer.frame() if framed or isinstance(config, DecoderConfig) else None
    if isinstance(config, EncoderConfig):
        before, behind = frame or ([], [])
        begin, end = next(iter(before), begin), next(iter(behind), end)
    elif isinstance(config, EncoderDecoderConfig):
        begin = tokens["decoder_start"]
        if begin is None:
            raise FolderError(f"{where}: decoder_start_token_id is missing")
    elif frame is not None:
        if len(frame[0]) > 1:
            raise FolderError(
                f"{tokenizer.where}: post_processor: adds {len(frame[0])} tokens before a text; at most 1 is supported"
            )
        begin = frame[0][0] if frame[0] else end if begin is None else begin
    if end is None:
        raise FolderError(f"{where}: eos_token_id is missing; it should name the token that ends a text")
    return frame, Parts(tokens["pad"], begin, end, None)


def _model(
    architecture: Architecture, config: ModelConfig, vocabulary: Vocabulary, foreign: ForeignFolder
) -> tuple[Model, JoinedTensors]:
    """Return the model without weights, and its weights."""
    rows, tensors = vocabulary.rows, architecture.prepare(foreign.read_tensors())
    config = _untied(architecture, config, tensors, foreign.path)
    rules = architecture.rules(config, rows)
    theirs = _cleaned(architecture, config, rules, tensors, foreign.path)
    ours = JoinedTensors(rules, theirs, foreign.path)
    tokens = len(rows.theirs)
    answers = rows.classes if config.kind == "encoder" and not getattr(config, "tied", False) else tokens
    sizes = Sizes(tokens, answers, shared=answers == tokens)
    try:
        model = build_for(lambda: config.build(sizes), ours.outlines(), f"the weights in {WEIGHTS}")
    except (ConfigError, ValueError) as error:
        raise FolderError(f"{foreign.path / CONFIG}: {error}") from None
    require_same_tensors(model_tensors(model), ours.outlines(), foreign.path)
    return model.eval(), ours


def _untied(architecture: Architecture, config: ModelConfig, tensors: dict[str, Tensor], where: Path) -> ModelConfig:
    """Return the settings, untied if the file has a separate output projection."""
    own = tensors.get(architecture.parting or "")
    first = next((name for name, others in architecture.tied.items() if architecture.parting in others), "")
    if own is None or first not in tensors or getattr(config, "tied", None) is not True:
        return config
    if own.shape == tensors[first].shape and torch.equal(own, tensors[first]):
        return config
    if getattr(config, "embedding_scale", False):
        raise FolderError(
            f"{where}: {architecture.parting} is not {first}, but the decoder's output is scaled as if they were tied"
        )
    return config.model_copy(update={"tied": "inputs"})


def _cleaned(
    architecture: Architecture, config: ModelConfig, rules: list[Rule], found: dict[str, Tensor], where: Path
) -> dict[str, Tensor]:
    """Return the weights under the rules' names: tied ones once, without those that this class does not use."""
    wanted, fixed = {name for rule in rules for name in rule.theirs}, architecture.fixed(config)
    known = {*wanted, *fixed, *(other for others in architecture.tied.values() for other in others)}
    tensors: dict[str, Tensor] = {}
    for name, tensor in found.items():
        name = name.removesuffix(".gamma") + ".weight" if name.endswith(".gamma") else name  # in early BERT checkpoints
        name = name.removesuffix(".beta") + ".bias" if name.endswith(".beta") else name
        longer = architecture.prefix + name
        tensors[longer if name not in wanted and longer in known else name] = tensor
    for first, others in architecture.tied.items():
        for other in (name for name in others if name in tensors and name not in wanted):
            same = tensors.setdefault(first, tensors[other])
            if same.shape != tensors[other].shape or not torch.equal(same, tensors[other]):
                raise FolderError(f"{where}: {other} is not {first}, but config.json ties them")
            del tensors[other]
    for name, right in fixed.items():
        if name in tensors:
            given = tensors.pop(name).to(right.dtype)
            common = min(len(given), len(right))
            if given.shape[1:] != right.shape[1:] or not torch.allclose(given[:common], right[:common], atol=1e-5):
                raise FolderError(f"{where}: {name} differs from the table that this architecture computes")
    return {
        name: one for name, one in tensors.items() if name in wanted or not name.endswith(architecture.unused or "\0")
    }


def _classes(tree: Tree, config: ModelConfig, name: str, where: Path | str) -> tuple[str, ...] | None:
    """Return the class names; () for a model without classes; None if its outputs are tokens."""
    if config.kind != "encoder" or getattr(config, "tied", False):
        return None
    if name.endswith("Model"):
        return ()
    labels: Any = tree.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not isinstance(labels, dict) or not all(isinstance(one, str) for one in labels.values()):
        raise FolderError(f"{where}: id2label: should map numbers to class names")
    try:
        numbered = {int(number): label for number, label in labels.items()}
        return tuple(numbered[number] for number in range(len(numbered)))
    except (ValueError, KeyError):
        raise FolderError(f"{where}: id2label: should number the classes from 0") from None


def _codec(
    config: ModelConfig,
    vocabulary: Vocabulary,
    frame: tuple[list[int], list[int]] | None,
    classes: tuple[str, ...] | None,
    name: str,
) -> Codec:
    tokenizer = vocabulary.tokenizer
    if isinstance(config, DecoderConfig):
        return Codec(target=tokenizer)
    sides: Frame | None = None
    if frame is not None:
        before, behind = (tuple(vocabulary.ours[number] for number in side) for side in frame)
        sides = before, behind
    if isinstance(config, EncoderConfig):
        words = sorted(tokenizer.vocabulary, key=lambda word: tokenizer.vocabulary[word])
        rest = [f"< unused {number} >" for number in range(len(words), len(vocabulary.rows.theirs))]
        named = (*words, *rest) if classes is None else classes
        return Codec(source=tokenizer, classes=named, per_position=config.pool == "none", frame=sides)
    return Codec(source=vocabulary.source, target=tokenizer, frame=sides)


def _origin(tree: Tree, vocabulary: Vocabulary, foreign: ForeignFolder, classifier: Tree) -> Origin:
    """Return the config, and the ids, names and files of the tokenizer, as they are in the folder."""
    rows = vocabulary.rows
    return Origin(tuple(rows.theirs), rows.hidden, rows.size, tree, foreign.kept_files(), classifier)


def _classifier(architecture: Architecture, tree: Tree, config: ModelConfig) -> Tree:
    """Return the settings that differ if an encoder of this architecture classifies texts; {} if it cannot."""
    name = next((name for name in architecture.classes if name.endswith("ForSequenceClassification")), None)
    if name is None or not isinstance(config, EncoderConfig):
        return {}
    try:
        found = architecture.read(Fields(tree, CONFIG), name).model_dump(mode="json")
    except (FolderError, ValueError):
        return {}
    own = config.model_dump(mode="json")
    return {field: value for field, value in found.items() if own.get(field) != value}


def _recipe(config: ModelConfig, name: str, beam: Any, picture: PictureConfig | None = None) -> Recipe:
    """Return a recipe with the task; its training data are unknown."""
    task: Tree
    if isinstance(config, DecoderConfig):
        longest = getattr(config.positions, "max_length", 1024)
        task = {"type": "language", "train": [NO_DATA], "valid": [NO_DATA], "context": min(1024, longest)}
    elif isinstance(config, EncoderConfig) and config.pool == "none":
        task = {"type": "tags"}
    elif picture is not None:
        task = {"type": "images", "train": NO_DATA, "valid": NO_DATA, "picture": picture.model_dump(mode="json")}
    elif isinstance(config, EncoderConfig):
        task = {"type": "classification", "train": NO_DATA, "valid": NO_DATA}
    else:
        task = {"type": "translation", "train": [NO_DATA], "valid": [NO_DATA]}
    task = {**bounded_lengths(task["type"], config), **task}
    decode = {"beam": beam} if isinstance(beam, int) and not isinstance(beam, bool) and 0 < beam <= 64 else {}
    tree = {"about": f"{name}{ABOUT}", "task": task, "model": config.model_dump(mode="json")}
    return parse(Recipe, {**tree, "decode": decode})


def _tag_notes(tags: Mapping[str, int] | None) -> list[str]:
    return [f"{len(tags):,} languages ({', '.join(sorted(tags)[:3])}, ...): translate --from A --to B"] if tags else []


def _notes(left: list[str]) -> list[str]:
    names = ", ".join(dict.fromkeys(left))
    return [f"settings of generate that are not imported: {names}"] if names else []


def _card(read: Imported) -> str:
    lines = [
        f"# {read.recipe.about}",
        "",
        f"{read.outline.parameter_count():,} parameters, imported with allyouneed {__version__}. "
        "Its training data are unknown.",
        "",
        *(f"- {note}" for note in read.notes),
        "",
    ]
    return "\n".join(lines)
