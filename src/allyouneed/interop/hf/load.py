"""Imports a Hugging Face folder as a model folder: settings, vocabulary, weights, task, in this order.

Anything that is not understood raises an error that names it: a field of the config, an unexpected or missing weight, a
tokenizer that cannot be renumbered. Nothing in the folder is executed.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allyouneed.config import Tree, parse
from allyouneed.errors import ConfigError, FolderError, unknown_name
from allyouneed.folder import KINDS, fill_model, folder_recipe, kind_of, save_folder, size_guard
from allyouneed.interop.hf.architectures import ARCHITECTURES
from allyouneed.interop.hf.architectures.base import Architecture
from allyouneed.interop.hf.chat import read_chat_template
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.files import CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, ForeignFolder
from allyouneed.interop.hf.rules import Rule, join_all
from allyouneed.interop.hf.vocabulary import ForeignTokenizer, Parts, Vocabulary, renumber
from allyouneed.interop.output_folder import require_safe_output
from allyouneed.models import Model, ModelConfig
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.encoder import EncoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.training.recipe import Recipe
from allyouneed.version import __version__

ABOUT = ", imported from Hugging Face"  # suffix of `about` in the recipe of an imported model
NO_DATA = "the data of an imported model are not known"  # in place of file names in its task
Frame = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Imported:
    """An imported model with its codec, recipe and notes."""

    model: Model
    codec: Codec
    vocabulary: Vocabulary
    recipe: Recipe
    type: str
    notes: list[str]


def import_folder(folder: Path, out: Path) -> list[str]:
    """Write the model folder and return notes for the user."""
    require_safe_output(out, folder, "model", _was_imported)
    read = read_folder(folder)
    save_folder(out, read.model, read.codec, read.recipe, _card(read))
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
    tree = foreign.read_json(CONFIG)
    fields = Fields(tree, foreign.path / CONFIG)
    architecture, name = _architecture(fields)
    generation = _generation(foreign)
    tokens = {key: _token(fields, generation, key) for key in ("pad", "bos", "eos", "decoder_start")}
    config = _settings(architecture, fields, name)
    beam = _known_search(fields, tokens) or _known_search(generation, tokens)
    notes = _notes([*fields.finish(), *generation.finish()])
    classes = _classes(tree, config, name)
    tokenizer = ForeignTokenizer(foreign.read_tokenizer(), foreign.path / TOKENIZER)
    frame, parts = _parts(tokenizer, tokens, config, architecture.framed)
    named = _tokenizer_settings(foreign)
    parts = replace(parts, unknown=tokenizer.unknown(named))
    size = fields.number("vocab_size")
    vocabulary = renumber(tokenizer, parts, size, len(classes or ()) if classes is not None else 0)
    if vocabulary.rows.hidden and not isinstance(config, EncoderConfig):
        config = config.model_copy(update={"output_bias": True})
    model = _model(architecture, config, vocabulary, foreign)
    codec = _codec(config, vocabulary, frame, classes, name)
    if isinstance(config, DecoderConfig):
        chat, left_out = read_chat_template(foreign, named, tokenizer, vocabulary)
        codec, notes = replace(codec, chat=chat), [*notes, *left_out]
    return Imported(model, codec, vocabulary, _recipe(config, name, beam), architecture.type, notes)


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
        raise FolderError(f"{fields.where}: model_type: {unknown_name(str(kind), ARCHITECTURES)}")
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


def _token(fields: Fields, generation: Fields, key: str) -> int | None:
    """Return the token that `generate` would use: the generation config overrides the model's."""
    first, second = generation.token(f"{key}_token_id"), fields.token(f"{key}_token_id")
    return second if first is None else first


def _known_search(fields: Fields, tokens: dict[str, int | None]) -> Any:
    """Return the beam size. Suppressing PAD and BOS counts as understood: every search here does it."""
    never = {tokens["pad"], tokens["decoder_start"]} - {None}
    if fields.get("bad_words_ids") in [[[number]] for number in never]:
        fields.ignore(["bad_words_ids"])
    else:
        fields.leave("bad_words_ids")
    return fields.get("num_beams")


def _parts(
    tokenizer: ForeignTokenizer, tokens: dict[str, int | None], config: ModelConfig, framed: bool
) -> tuple[tuple[list[int], list[int]] | None, Parts]:
    """Return the frame of a source if it is not the default, and the roles of the special tokens."""
    begin, end = tokens["bos"], tokens["eos"]
    frame = tokenizer.frame() if framed else None
    if isinstance(config, EncoderConfig):
        before, behind = frame or ([], [])
        begin, end = next(iter(before), begin), next(iter(behind), end)
    elif isinstance(config, EncoderDecoderConfig):
        begin = tokens["decoder_start"]
        if begin is None:
            raise FolderError(f"{tokenizer.where.parent / CONFIG}: decoder_start_token_id is missing")  # type: ignore[attr-defined]
    elif begin is None:
        begin = end
    if end is None:
        raise FolderError(f"{tokenizer.where}: no end-of-text token; eos_token_id or the template should name one")
    return frame, Parts(tokens["pad"], begin, end, None)


def _model(architecture: Architecture, config: ModelConfig, vocabulary: Vocabulary, foreign: ForeignFolder) -> Model:
    rows, tensors = vocabulary.rows, architecture.prepare(foreign.read_tensors())
    config = _untied(architecture, config, tensors, foreign.path)
    rules = architecture.rules(config, rows)
    theirs = _cleaned(architecture, config, rules, tensors, foreign.path)
    ours = join_all(rules, theirs, foreign.path)
    tokens = len(rows.theirs)
    answers = rows.classes if isinstance(config, EncoderConfig) and not config.tied else tokens
    try:
        with torch.random.fork_rng(devices=[]), size_guard(ours):
            model = config.build(Sizes(tokens, answers, shared=answers == tokens))
    except (ConfigError, ValueError) as error:
        raise FolderError(f"{foreign.path / CONFIG}: {error}") from None
    fill_model(model, ours, foreign.path)
    return model.eval()


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
    tensors: dict[str, Tensor] = {}
    for name, tensor in found.items():
        name = name.removesuffix(".gamma") + ".weight" if name.endswith(".gamma") else name  # in early BERT checkpoints
        name = name.removesuffix(".beta") + ".bias" if name.endswith(".beta") else name
        longer = architecture.prefix + name
        tensors[longer if name not in wanted and (longer in wanted or longer in fixed) else name] = tensor
    for first, others in architecture.tied.items():
        for other in (name for name in others if name in tensors and name not in wanted):
            same = tensors.setdefault(first, tensors[other])
            if same.shape != tensors[other].shape or not torch.equal(same, tensors[other]):
                raise FolderError(f"{where}: {other} is not {first}, but config.json ties them")
            del tensors[other]
    for name, right in fixed.items():
        if name in tensors:
            given = tensors.pop(name)
            common = min(len(given), len(right))
            if given.shape[1:] != right.shape[1:] or not torch.allclose(given[:common], right[:common], atol=1e-5):
                raise FolderError(f"{where}: {name} differs from the table that this architecture computes")
    return {
        name: one for name, one in tensors.items() if name in wanted or not name.endswith(architecture.unused or "\0")
    }


def _classes(tree: Tree, config: ModelConfig, name: str) -> tuple[str, ...] | None:
    """Return the class names; () for a model without classes; None if its outputs are tokens."""
    if not isinstance(config, EncoderConfig) or config.tied:
        return None
    if name.endswith("Model"):
        return ()
    labels: Any = tree.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not isinstance(labels, dict) or not all(isinstance(one, str) for one in labels.values()):
        raise FolderError(f"{CONFIG}: id2label: should map numbers to class names")
    try:
        numbered = {int(number): label for number, label in labels.items()}
        return tuple(numbered[number] for number in range(len(numbered)))
    except (ValueError, KeyError):
        raise FolderError(f"{CONFIG}: id2label: should number the classes from 0") from None


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
    return Codec(source=tokenizer, target=tokenizer, frame=sides)


def _recipe(config: ModelConfig, name: str, beam: Any) -> Recipe:
    """Return a recipe with the task; its training data are unknown."""
    task: Tree
    if isinstance(config, DecoderConfig):
        longest = getattr(config.positions, "max_length", 1024)
        task = {"type": "language", "train": [NO_DATA], "valid": [NO_DATA], "context": min(1024, longest)}
    elif isinstance(config, EncoderConfig) and config.pool == "none":
        task = {"type": "tags"}
    elif isinstance(config, EncoderConfig):
        task = {"type": "classification", "train": NO_DATA, "valid": NO_DATA}
    else:
        task = {"type": "translation", "train": [NO_DATA], "valid": [NO_DATA]}
    decode = {"beam": beam} if isinstance(beam, int) and not isinstance(beam, bool) and 0 < beam <= 64 else {}
    tree = {"about": f"{name}{ABOUT}", "task": task, "model": config.model_dump(mode="json")}
    return parse(Recipe, {**tree, "decode": decode})


def _notes(left: list[str]) -> list[str]:
    names = ", ".join(dict.fromkeys(left))
    return [f"settings of generate that are not imported: {names}"] if names else []


def _card(read: Imported) -> str:
    lines = [
        f"# {read.recipe.about}",
        "",
        f"{read.model.parameter_count():,} parameters, imported with allyouneed {__version__}. "
        "Its training data are unknown.",
        "",
        *(f"- {note}" for note in read.notes),
        "",
    ]
    return "\n".join(lines)
