"""Exports a model as a Hugging Face folder that transformers loads: config, weights, tokenizer.

An imported model becomes what it was (original.py). Otherwise the architecture follows from the kind of model and its
positions. Its settings are written and read back as an import would read them. A setting that differs after the round
trip cannot be expressed, and is refused by name.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allyouneed.config import Tree
from allyouneed.errors import ConfigError
from allyouneed.folder import Bundle
from allyouneed.interop.export_notes import chat_note, shortlist_note
from allyouneed.interop.hf.architectures import ARCHITECTURES
from allyouneed.interop.hf.architectures.base import Architecture, softmax_of
from allyouneed.interop.hf.files import CONFIG, GENERATION, KEPT, TOKENIZER, write_weights
from allyouneed.interop.hf.original import label_fields, original_target, require_readable
from allyouneed.interop.hf.rewrites import REWRITES
from allyouneed.interop.hf.rules import ZERO_PROBABILITY_LOGIT, Rows, split_all
from allyouneed.interop.hf.sentences import sentences_field
from allyouneed.interop.hf.tokens import TokenMap, tokenizer_files
from allyouneed.interop.hf.vision import write_preprocessor
from allyouneed.interop.output_folder import require_safe_output
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.encoder import EncoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.models.parts.stack import StackConfig
from allyouneed.models.vit import ViTConfig
from allyouneed.storage import new_folder
from allyouneed.text.codec import Codec
from allyouneed.text.origin import Origin
from allyouneed.text.specials import BOS, EOS, PAD, UNK
from allyouneed.weights import model_tensors

# By kind of model, positions and placement of the norms.
ARCHITECTURE_OF: dict[tuple[str, ...], str] = {
    ("encoder-decoder", "sinusoidal", "post"): "marian",
    ("encoder-decoder", "sinusoidal", "pre"): "pegasus",
    ("encoder-decoder", "learned", "post"): "bart",
    ("encoder-decoder", "learned", "pre"): "mbart",
    ("encoder-decoder", "t5", "pre"): "t5",
    ("decoder", "learned", "pre"): "gpt2",
    ("decoder", "sinusoidal", "pre"): "gpt2",
    ("decoder", "rotary", "pre"): "llama",
    ("decoder", "rotary", "both"): "gemma2",
    ("decoder", "alibi", "pre"): "bloom",
    ("encoder", "learned", "post"): "bert",
    ("encoder", "sinusoidal", "post"): "bert",
    ("encoder", "rotary", "post"): "roformer",
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
Weights = dict[str, Tensor]


def export_folder(bundle: Bundle, out: Path, dtype: str | None = None) -> list[str]:
    """Write the folder and return notes for the user. `dtype`: of the weights; default: that of the original."""
    require_safe_output(out, bundle.path, "hf")
    built: Any = bundle.model
    if not isinstance(built.config, DecoderConfig | EncoderConfig | EncoderDecoderConfig | ViTConfig):
        raise ConfigError(f"{bundle.path}: model.type: {built.config.type} has no counterpart in transformers")
    try:
        export = _export_of(bundle, built)
    except ConfigError as error:
        raise ConfigError(f"{bundle.path}: {error}") from None
    kind, settings = _typed(export.settings, dtype)
    tensors = {name: _cast(tensor, kind) for name, tensor in export.tensors().items()}
    trees = {CONFIG: settings, **export.trees}
    origin = bundle.codec.origin
    files = {name: _json(tree, name) for name, tree in trees.items()} | _kept_files(bundle)
    with new_folder(out) as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        write_weights(folder, tensors)
        (folder / "README.md").write_text(bundle.card, encoding="utf-8")
    opened = f"{settings['architectures'][0]}; transformers loads it with from_pretrained({str(out)!r})"
    notes = [opened, *shortlist_note(bundle, "transformers has no shortlists")]
    if dtype is None and kind is not torch.float32 and bundle.recipe.get("start") is not None:
        notes += [f"weights are rounded to {kind}, as the original's are; --quantization float32 keeps all digits"]
    return [*notes, *(chat_note(bundle) if origin is None else [])]


def _kept_files(bundle: Bundle) -> dict[str, bytes]:
    """Return the files of the original's tokenizer. A model folder is not trusted to name others, such as pickles."""
    origin = bundle.codec.origin
    found = {} if origin is None else dict(origin.files)
    for name in sorted(found.keys() - set(KEPT)):
        raise ConfigError(f"{bundle.path}: original.json: {name!r} is not a file of a tokenizer")
    return found


@dataclass(frozen=True)
class _Export:
    """A model as an architecture of transformers: its config, other files, and weights."""

    architecture: Architecture
    settings: Tree
    trees: dict[str, Tree]
    config: Any
    weights: Weights
    rows: Rows

    def tensors(self) -> Weights:
        """Return their tensors."""
        found = dict(split_all(self.architecture.rules(self.config, self.rows), self.weights))
        if self.architecture.needs_fixed:
            found |= self.architecture.fixed(self.config, self.settings["max_position_embeddings"])
        return found


def _export_of(bundle: Bundle, built: Any) -> _Export:
    """Return the model as what it was imported as, or as the architecture that fits its settings."""
    origin, config, weights = bundle.codec.origin, built.config, model_tensors(built)
    original = None if origin is None else original_target(origin, config, bundle.codec.classes)
    if original is not None:
        config, weights, rows, _ = _vocabulary(bundle, config, weights, original.architecture)
        settings = original.settings | sentences_field(bundle.codec, original.settings, original.architecture.type)
        return _Export(original.architecture, settings, {}, config, weights, rows)
    architecture = _target_architecture(config)
    config, weights = _rewritten_model(config, weights, architecture)
    if architecture.pictures:
        settings, rows = _settings(config, architecture), Rows((), classes=len(bundle.codec.classes or ()))
        trees = write_preprocessor(bundle.codec, config)
        return _Export(architecture, settings | _answers(bundle, config), trees, config, weights, rows)
    config, weights, rows, tokens = _vocabulary(bundle, config, weights, architecture)
    settings = _settings(config, architecture) | _answers(bundle, config) | {"vocab_size": rows.size}
    if origin is None:
        numbers, trees = tokens.numbers(config), tokenizer_files(bundle.codec, tokens, config)
    else:  # its ids and files; another architecture
        numbers, trees = {name: value for name, value in origin.config.items() if "_token_id" in name}, {}
    if not isinstance(config, EncoderConfig):
        trees[GENERATION] = {**numbers, **_search(bundle)}
    settings |= numbers | sentences_field(bundle.codec, settings, architecture.type)
    return _Export(architecture, settings, trees, config, weights, rows)


def _typed(settings: Tree, dtype: str | None) -> tuple[torch.dtype, Tree]:
    """Return the type of the weights, and the config that states it. Raise ConfigError for an unknown type."""
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"--quantization {dtype}: --to hf writes {', '.join(DTYPES)}; int8 is for --to ctranslate2")
    field = "dtype" if "dtype" in settings else "torch_dtype"
    name = dtype or str(settings.get(field)).removeprefix("torch.")
    name = name if name in DTYPES else "float32"
    return DTYPES[name], {**settings, field: name} if dtype or field not in settings else settings


def _cast(tensor: Tensor, kind: torch.dtype) -> Tensor:
    return tensor.to(kind) if tensor.is_floating_point() else tensor


def _json(tree: Tree, name: str) -> bytes:
    return (json.dumps(tree, indent=1 if name != TOKENIZER else None, ensure_ascii=False) + "\n").encode("utf-8")


def _target_architecture(config: Any) -> Architecture:
    mixers = config.mixer if isinstance(config.mixer, list) else [config.mixer]
    other = [mixer.type for mixer in mixers if not isinstance(mixer, SoftmaxConfig)]
    if other:
        raise ConfigError(f"model.mixer: {other[0]}; only softmax is exported to transformers")
    if isinstance(config, ViTConfig):
        return ARCHITECTURES["vit"]
    target = ARCHITECTURE_OF.get((config.kind, config.positions.type, config.norm))
    if target is None:
        what = f"model.positions={config.positions.type} with model.norm={config.norm}"
        known = [f"{positions} with {norm}" for kind, positions, norm in ARCHITECTURE_OF if kind == config.kind]
        raise ConfigError(
            f"{what} has no counterpart in transformers for a model of type {config.type}; train with one that has: "
            + ", ".join(known)
        )
    if target == "marian" and config.embedding_norm:
        target = "bart"
    if target == "pegasus" and config.positions.inclusive:
        target = "m2m_100"
    if target == "pegasus" and config.embedding_norm:
        target = "mbart"
    if target == "bert" and config.transform == "relu":
        target = "distilbert"
    return ARCHITECTURES[_like_llama(config) if target == "llama" else target]


def _like_llama(config: DecoderConfig) -> str:
    """Return which of the decoders with rotary positions a model is."""
    mixer = softmax_of(config)
    if config.normalisation == "layer" or config.parallel:
        return "gpt_neox"
    if mixer.head_norm is not None:
        return "qwen3"
    if mixer.bias == "inputs":
        return "qwen2"
    if mixer.window is not None:
        return "mistral"
    return "gemma" if config.feedforward == "geglu-tanh" else "llama"


def _rewritten_model(config: Any, weights: Weights, architecture: Architecture) -> tuple[Any, Weights]:
    """Rewrite the model into a form that the architecture supports."""
    heads = config.mixer_of(0).position_heads
    for name in architecture.rewrites:
        config, weights = REWRITES[name](config, weights, heads)
    return config, weights


def _vocabulary(
    bundle: Bundle, config: Any, weights: Weights, architecture: Architecture
) -> tuple[Any, Weights, Rows, TokenMap]:
    """Map our ids to their tokens, except ids that are never generated; adapt the output bias."""
    codec, bias_V = bundle.codec, weights.get("head.bias_V")
    answers_are_tokens = not isinstance(config, EncoderConfig) or config.tied
    table = "source.weight_VD" if "source.weight_VD" in weights else "target.weight_VD"
    sized, classes = weights[table].shape[0], 0 if answers_are_tokens else len(codec.classes or ())
    if codec.origin is not None:
        rows = _original_rows(codec.origin, sized, classes)
        weights = _with_one_begin(weights, table, rows)
    else:
        place = None
        if architecture.type == "m2m_100":  # its positions start after the number of the padding token
            if config.positions.first == 0:
                raise ConfigError("model.positions.first: 0; m2m_100 of transformers has at least 1")
            place = config.positions.first - 1
        rows = _own_rows(codec, bias_V if answers_are_tokens else None, sized, classes, place)
    kept = [number for number in range(sized) if number not in rows.hidden]
    tokens = TokenMap(rows, _token_roles(weights, rows.theirs, rows.hidden))
    if isinstance(config, EncoderConfig):
        return config, weights, rows, tokens
    writes_bias = any(rule.ours == "head.bias_V" and rule.theirs for rule in architecture.rules(config, rows))
    if writes_bias and bias_V is None:
        weights = {
            **weights,
            "head.bias_V": weights[table].new_zeros(sized),
        }
        config = config.model_copy(update={"output_bias": True})
    if not writes_bias and bias_V is not None:
        if bool((bias_V[kept] != 0).any()):
            raise ConfigError(f"model.output_bias: {architecture.type} has no output bias")
        config = config.model_copy(update={"output_bias": False})
    return config, weights, rows, tokens


def _original_rows(origin: Origin, sized: int, classes: int) -> Rows:
    """Return the original tokens of an imported model."""
    if len(origin.theirs) != sized:
        raise ConfigError(f"original.json: {len(origin.theirs):,} ids, but the model has {sized:,}")
    return Rows(origin.theirs, origin.hidden, origin.size, classes)


def _with_one_begin(weights: Weights, table: str, rows: Rows) -> Weights:
    """Return the weights with the vector of BOS for a token that is both padding and BOS: padding is never read."""
    if BOS not in rows.hidden or PAD in rows.hidden or rows.theirs[BOS] != rows.theirs[PAD]:
        return weights
    changed = weights[table].clone()
    changed[PAD] = changed[BOS]
    return {**weights, table: changed}


def _own_rows(codec: Codec, bias_V: Tensor | None, sized: int, classes: int, pad: int | None) -> Rows:
    """Return tokens in the order of our ids, without ids that are never generated. `pad`: the number of padding."""
    if codec.source is not None and codec.target is not None and codec.source is not codec.target:
        raise ConfigError("source and target have separate vocabularies; transformers needs a shared one")
    hidden = frozenset[int]()
    if bias_V is not None:
        hidden = frozenset(number for number in (PAD, BOS, EOS, UNK) if bias_V[number] <= ZERO_PROBABILITY_LOGIT)
    kept = [number for number in range(sized) if number not in hidden]
    if pad is not None:
        kept.remove(PAD)
        kept.insert(pad, PAD)
    theirs: list[int | None] = [None] * sized
    for token, number in enumerate(kept):
        theirs[number] = token
    return Rows(tuple(theirs), hidden, sized - len(hidden), classes)


def _token_roles(weights: Weights, theirs: Sequence[int | None], hidden: frozenset[int]) -> dict[int, int | None]:
    """Return the token for each of our four special ids: its own, or the one that it duplicates."""
    table_VD = next(weights[name] for name in ("source.weight_VD", "target.weight_VD") if name in weights)
    roles: dict[int, int | None] = {}
    for number in (PAD, BOS, EOS, UNK):
        same = [
            other
            for other in (EOS, PAD, UNK)
            if other not in hidden and bool((table_VD[other] == table_VD[number]).all())
        ]
        roles[number] = theirs[number] if number not in hidden else theirs[same[0]] if same else None
    return roles


def _settings(config: StackConfig, architecture: Architecture) -> Tree:
    """Return the Hugging Face settings. Raise ConfigError if reading them back gives different settings."""
    name = architecture.class_of(config) if architecture.class_of else architecture.classes[0]
    written = {"architectures": [name], "model_type": architecture.type, **architecture.write(config)}
    require_readable(architecture, name, {**written, "vocab_size": 1}, config)
    return written


def _answers(bundle: Bundle, config: Any) -> Tree:
    """Return the fields with the class names."""
    if config.kind != "encoder" or getattr(config, "tied", False):
        return {}
    if not bundle.codec.classes:
        raise ConfigError(f"{bundle.path}: has no classes; an encoder without a head cannot be exported")
    return label_fields(bundle.codec.classes)


def _search(bundle: Bundle) -> Tree:
    decode = bundle.recipe.get("decode")
    beam = decode.get("beam") if isinstance(decode, dict) else None
    return {"num_beams": beam} if isinstance(beam, int) and bundle.codec.source is not None else {}
