"""Typed recipes <-> TOML, with dotted overrides.

A config is a frozen pydantic model that refuses unknown keys. A choice between mechanisms is a table with a `type`:

    mixer = "softmax"                         # short for
    mixer = { type = "softmax", heads = 4 }   # this

and the type is looked up in a closed, readable dict (`MIXERS`, `TASKS`, ...): a file can never name code to import.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from allyouneed.errors import ConfigError, unknown_name

LARGEST_RECIPE = 1 << 20  # bytes; a recipe is a page of text
DEEPEST_EXTENDS = 8

Tree = dict[str, Any]
C = TypeVar("C", bound="Config")


class Config(BaseModel):
    """The base of every config: immutable, typed, and it refuses what it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def choice(table: Mapping[str, type[Config]]) -> BeforeValidator:
    """Reads a mechanism's config from its name or from a table with a `type`, through a closed table.

    A field that holds one line of a table: `Annotated[SerializeAsAny[MixerConfig], choice(MIXERS)]`.
    """

    def read(value: Any) -> Any:
        if isinstance(value, str):
            value = {"type": value}
        if not isinstance(value, Mapping):
            return value
        name = value.get("type")
        if not isinstance(name, str):
            raise ValueError(f"needs a type; known: {', '.join(sorted(table))}")
        if name not in table:
            raise ValueError(unknown_name(name, table))
        return table[name].model_validate(dict(value))

    return BeforeValidator(read)


def parse(cls: type[C], tree: Mapping[str, Any], where: str = "") -> C:
    """A config from plain values. Errors name the place in the tree, what was found and what would be right."""
    try:
        return cls.model_validate(dict(tree))
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(cls, item, where) for item in error.errors())) from None


def _explain(cls: type[Config], item: Any, where: str) -> str:
    location = ".".join(str(part) for part in item["loc"])
    place = ": ".join(part for part in (where, location) if part)
    prefix = f"{place}: " if place else ""
    if item["type"] == "extra_forbidden":
        known = _fields_at(cls, item["loc"][:-1])
        return prefix + unknown_name(str(item["loc"][-1]), known)
    if item["type"] == "missing":
        return f"{prefix}is missing"
    message = item["msg"].removeprefix("Value error, ")
    found = item.get("input")
    if item["type"] == "value_error" or isinstance(found, dict | list):
        return prefix + message
    return f"{prefix}{message}; found {found!r}"


def _fields_at(cls: Any, path: Sequence[Any]) -> list[str]:
    for part in path:
        field = getattr(cls, "model_fields", {}).get(part)
        if field is None:
            return []
        cls = field.annotation
    return list(getattr(cls, "model_fields", {}))


def read_recipe(path: Path, depth: int = 0) -> Tree:
    """The plain values of a TOML file. `extends = "other.toml"` starts from another file beside it."""
    if depth > DEEPEST_EXTENDS:
        raise ConfigError(f"{path}: extends goes deeper than {DEEPEST_EXTENDS} files; is there a circle?")
    try:
        if path.stat().st_size > LARGEST_RECIPE:
            raise ConfigError(f"{path}: {path.stat().st_size:,} bytes; a recipe has at most {LARGEST_RECIPE:,}")
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `allyouneed list recipes` shows the built-in ones") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as TOML: {error}") from None
    base = tree.pop("extends", None)
    if base is None:
        return tree
    if not isinstance(base, str) or Path(base).name != base:
        raise ConfigError(f"{path}: extends: {base!r} is not the name of a file in the same folder")
    return merge(read_recipe(path.parent / base, depth + 1), tree)


def merge(below: Tree, above: Mapping[str, Any]) -> Tree:
    """`above` laid over `below`, table by table. A table with another `type` replaces the one below."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if (
            isinstance(old, dict)
            and isinstance(value, Mapping)
            and value.get("type", old.get("type")) == old.get("type")
        ):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def override(tree: Tree, pairs: Sequence[str]) -> Tree:
    """`["model.layers=3"]` laid over the tree. Values are read as TOML; what is not TOML is text."""
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not all(key.split(".")):
            raise ConfigError(f"--set {pair}: should look like model.layers=3")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        above: Tree = {}
        node = above
        *parents, last = key.split(".")
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
        # A bare name ("softmax") grows into a table when one of its fields is set.
        tree = merge(_open_names(tree, parents), above)
    return tree


def _open_names(tree: Tree, parents: Sequence[str]) -> Tree:
    if not parents or parents[0] not in tree:
        return tree
    head, *rest = parents
    child = {"type": tree[head]} if isinstance(tree[head], str) else tree[head]
    return {**tree, head: _open_names(child, rest) if isinstance(child, dict) else child}


def to_toml(config: Config) -> str:
    """The config as TOML, every value written out: two runs are compared with `diff`."""
    return "\n".join(_toml_lines(config.model_dump(exclude_none=True), ())).strip() + "\n"


def _toml_lines(tree: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = [f"{key} = {_toml_value(value)}" for key, value in tree.items() if not isinstance(value, Mapping)]
    lines = ["", f"[{'.'.join(path)}]", *plain] if path else plain
    for key, value in tree.items():
        if isinstance(value, Mapping):
            lines += _toml_lines(value, (*path, key))
    return lines


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)
