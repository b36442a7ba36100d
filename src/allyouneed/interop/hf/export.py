"""Exports a model as a Hugging Face folder that transformers loads: config, weights, tokenizer.

The architecture follows from the kind of model and its positions. Its settings are written and read back as an import
would read them. A setting that differs after the round trip cannot be expressed, and is refused by name.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from allyouneed.config import Tree
from allyouneed.errors import ConfigError, FolderError
from allyouneed.folder import Bundle
from allyouneed.interop.export_notes import chat_note, shortlist_note
from allyouneed.interop.hf.architectures import ARCHITECTURES
from allyouneed.interop.hf.architectures.base import Architecture, epsilon_of, softmax_of
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.files import CONFIG, GENERATION, TOKENIZER, write_weights
from allyouneed.interop.hf.rewrites import REWRITES
from allyouneed.interop.hf.rules import ZERO_PROBABILITY_LOGIT, Rows, split_all
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
Weights = dict[str, Tensor]


def export_folder(bundle: Bundle, out: Path) -> list[str]:
    """Write the folder and return notes for the user."""
    require_safe_output(out, bundle.path, "hf")
    built: Any = bundle.model
    if not isinstance(built.config, DecoderConfig | EncoderConfig | EncoderDecoderConfig | ViTConfig):
        raise ConfigError(f"{bundle.path}: model.type: {built.config.type} has no counterpart in transformers")
    try:
        architecture = _target_architecture(built.config)
        config, weights = _rewritten_model(built.config, model_tensors(built), architecture)
        if architecture.pictures:
            return _export_pictures(bundle, config, weights, architecture, out)
        config, weights, rows, tokens = _vocabulary(bundle, config, weights, architecture)
        settings = _settings(config, architecture)
    except ConfigError as error:
        raise ConfigError(f"{bundle.path}: {error}") from None
    origin, numbers = bundle.codec.origin, tokens.numbers(config)
    numbers = numbers if origin is None else dict(origin.fields)
    settings |= _answers(bundle, config, architecture) | numbers | {"vocab_size": rows.size}
    tensors = dict(split_all(architecture.rules(config, rows), weights))
    if architecture.needs_fixed:
        tensors |= architecture.fixed(config)
    trees = {CONFIG: settings, **(tokenizer_files(bundle.codec, tokens, config) if origin is None else {})}
    if not isinstance(config, EncoderConfig):
        trees[GENERATION] = {**numbers, **_search(bundle)}
    files = {name: _json(tree, name) for name, tree in trees.items()} | dict(origin.files if origin is not None else {})
    notes = _write_folder(out, bundle, files, tensors, settings)
    notes += shortlist_note(bundle, "transformers has no shortlists")
    return [*notes, *(chat_note(bundle) if origin is None else [])]


def _export_pictures(bundle: Bundle, config: Any, weights: Weights, architecture: Architecture, out: Path) -> list[str]:
    """Write the folder of a model of images."""
    settings = _settings(config, architecture) | _answers(bundle, config, architecture)
    rows = Rows((), classes=len(bundle.codec.classes or ()))
    tensors = dict(split_all(architecture.rules(config, rows), weights))
    trees = {CONFIG: settings, **write_preprocessor(bundle.codec, config)}
    files = {name: _json(tree, name) for name, tree in trees.items()}
    return _write_folder(out, bundle, files, tensors, settings)


def _write_folder(
    out: Path, bundle: Bundle, files: dict[str, bytes], tensors: dict[str, Tensor], settings: Tree
) -> list[str]:
    """Write files, weights and the card; return a note on how to open the folder."""
    with new_folder(out) as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        write_weights(folder, tensors)
        (folder / "README.md").write_text(bundle.card, encoding="utf-8")
    return [f"{settings['architectures'][0]}; transformers loads it with from_pretrained({str(out)!r})"]


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
        raise ConfigError(f"{what} has no counterpart in transformers for a model of type {config.type}")
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
    written = architecture.write(config)
    fields = Fields(
        {**written, "vocab_size": 1, "model_type": architecture.type, "architectures": [name]}, "config.json"
    )
    try:
        back = architecture.read(fields, name)
    except (FolderError, ValueError) as error:
        raise ConfigError(f"{architecture.type} of transformers cannot express it: {error}") from None
    for field, right in _plain(config).items():
        found = _plain(back).get(field)
        if found != right:
            raise ConfigError(f"model.{field}: {right}; {architecture.type} of transformers has {found}")
    return {"architectures": [name], "model_type": architecture.type, **written, "torch_dtype": "float32"}


def _plain(config: Any) -> Tree:
    """Return settings with all defaults filled in, so that equivalent settings compare equal."""
    elsewhere = {"mean", "std"}  # of pixels: in another file
    apart = {"dropout", "output_bias", "epsilon", "mixer", "encoder_mixer", "cross"}
    tree = config.model_dump(mode="json", exclude=apart | elsewhere)
    mixers = {"mixer": config.mixer}
    if isinstance(config, EncoderDecoderConfig):
        mixers |= {"encoder_mixer": config.encoder_mixer or config.mixer, "cross": config.cross_mixer()}
    for name, found in mixers.items():
        listed = found if isinstance(found, list) else [found]
        spelled = [_spelled(mixer, config.width) for mixer in listed]
        tree[name] = spelled[0] if all(one == spelled[0] for one in spelled) else spelled
    return tree | {"epsilon": epsilon_of(config)}


def _spelled(mixer: Any, width: int) -> Tree:
    tree: Tree = mixer.model_dump(mode="json")
    if isinstance(mixer, SoftmaxConfig):
        keys, values = mixer.head_widths(width)
        tree |= {"key_heads": mixer.groups, "key_width": keys, "value_width": values}
    return tree


def _answers(bundle: Bundle, config: Any, architecture: Architecture) -> Tree:
    """Return the fields with the class names."""
    if config.kind != "encoder" or getattr(config, "tied", False):
        return {}
    names = list(bundle.codec.classes or ())
    if not names:
        raise ConfigError(f"{bundle.path}: has no classes; an encoder without a head cannot be exported")
    return {
        "id2label": {str(n): name for n, name in enumerate(names)},
        "label2id": {name: n for n, name in enumerate(names)},
    }


def _search(bundle: Bundle) -> Tree:
    decode = bundle.recipe.get("decode")
    beam = decode.get("beam") if isinstance(decode, dict) else None
    return {"num_beams": beam} if isinstance(beam, int) and bundle.codec.source is not None else {}
