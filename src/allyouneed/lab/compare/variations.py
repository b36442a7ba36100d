"""Variations of a comparison: one setting at a time, each value against the unchanged recipe.

    model.norm=pre,post                       a dotted setting and its values
    model.mixer=window,{type="sparse"}        values are parsed as TOML, else as text; commas in brackets do not split
    model={norm="post",dropout=0.1}           a table changes several settings at once
    table3                                    rows A to E of table 3 of the 2017 paper, scaled to the recipe

Papers: Vaswani et al. 2017, arXiv:1706.03762, table 3; Narang et al. 2021, arXiv:2102.11972 (many variations).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from allyouneed.errors import ConfigError
from allyouneed.training import Recipe

TABLE_3 = "table3"
OPEN, CLOSE = "[{", "]}"
# Training settings shared by all recipes: otherwise the best weights would be selected from more or fewer evaluations.
SHARED_TRAINING = ("budget", "evaluate_every", "evaluation_share", "metric", "patience")
HELD_OUT = ("type", "valid", "test", "split", "held_out", "lengths", "test_lengths")  # settings of the held-out set
HELD = {
    "seed": "use --seeds",
    "train.budget": "use one of --steps, --tokens, --flops, --minutes",
    **{f"train.{name}": "--set changes it for all" for name in SHARED_TRAINING[1:]},
    **{f"task.{name}": "--set changes it for all" for name in HELD_OUT},
}  # settings shared by all runs, with the option to use instead


@dataclass(frozen=True)
class Variation:
    """A change of the recipe."""

    name: str
    sets: tuple[str, ...]  # as in `--set`


def read_variations(texts: Sequence[str], recipe: Recipe) -> list[Variation]:
    """Return all variations of `--vary`, in order."""
    keys = [text.partition("=")[0].strip() for text in texts]
    short = {key: _short(key, keys) for key in keys}
    found: list[Variation] = []
    for text, key in zip(texts, keys, strict=True):
        found += table_3(recipe) if text.strip() == TABLE_3 else _values(text, key, short[key])
    names = [variation.name for variation in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"--vary: {', '.join(twice)}: given twice")
    return found


def _values(text: str, key: str, short: str) -> list[Variation]:
    _, equals, rest = text.partition("=")
    values = [value.strip() for value in split_values(rest)]
    if not equals or not all(key.split(".")) or not all(values):
        raise ConfigError(f"--vary {text}: should look like model.norm=pre,post, or be {TABLE_3}")
    require_not_held(key, [key])
    return [Variation(f"{short}={value}", (f"{key}={value}",)) for value in values]


def require_not_held(what: str, keys: Sequence[str]) -> None:
    """Raise ConfigError for a variation of shared settings, which would make scores incomparable."""
    for key in keys:
        for held, instead in HELD.items():
            if key == held or key.startswith(f"{held}."):
                raise ConfigError(f"--vary {what}: {key} is the same for all runs of a comparison; {instead}")


def split_values(text: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in OPEN:
            depth += 1
        elif char in CLOSE:
            depth -= 1
        elif char == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += char
    return parts


def _short(key: str, keys: Sequence[str]) -> str:
    """Return the last part of a dotted name, or all of it if the last part is ambiguous."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in set(keys)) == 1 else key


def table_3(recipe: Recipe) -> list[Variation]:
    """Return rows A to E of table 3, relative to this recipe as the paper's rows are to its base model.

    Row F, the big model, is left out. If dropout or label smoothing is not the base model's 0.1, 0.1 is tried too.
    """
    model = recipe.model.model_dump()
    mixer = model.get("mixer")
    if model["type"] != "encoder-decoder" or not isinstance(mixer, dict) or mixer.get("type") != "softmax":
        raise ConfigError(
            f"--vary {TABLE_3}: needs an encoder-decoder with softmax attention, such as numbers-en-de; "
            f"found {model['type']!r}"
        )
    width, heads, hidden = model["width"], mixer["heads"], model["hidden"]
    key_width = mixer["key_width"] or width // heads
    encoder, decoder = model["encoder_layers"], model["decoder_layers"]
    rows = [_set(f"(A) heads {count}", f"model.mixer.heads={count}") for count in _heads(width, heads)]
    rows += [
        _set(f"(B) d_k {size}", f"model.mixer.key_width={size}") for size in (key_width // 2, key_width // 4) if size
    ]
    for factor in (0.5, 2):
        layers = max(1, round(encoder * factor)), max(1, round(decoder * factor))
        name = f"(C) layers {layers[0]}" + (f"+{layers[1]}" if layers[0] != layers[1] else "")
        rows.append(_set(name, f"model.encoder_layers={layers[0]}", f"model.decoder_layers={layers[1]}"))
    rows += [_set(f"(C) width {size}", f"model.width={size}") for size in (width // 2, 2 * width) if size % heads == 0]
    rows += [_set(f"(C) hidden {size}", f"model.hidden={size}") for size in (hidden // 2, 2 * hidden) if size]
    rows += [_set(f"(D) dropout {rate}", f"model.dropout={rate}") for rate in (0.0, 0.1, 0.2)]
    rows += [_set(f"(D) smoothing {rate}", f"train.label_smoothing={rate}") for rate in (0.0, 0.1, 0.2)]
    rows.append(_set("(E) learned positions", "model.positions=learned"))
    return rows


def _heads(width: int, heads: int) -> list[int]:
    """Return one, half, twice and four times the heads, as the paper's 1, 4, 16, 32 for 8, if the width allows."""
    counts = dict.fromkeys([1, heads // 2, 2 * heads, 4 * heads])
    return [count for count in counts if count >= 1 and width % count == 0 and count != heads]


def _set(name: str, *sets: str) -> Variation:
    return Variation(name, sets)
