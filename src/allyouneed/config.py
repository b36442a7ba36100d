"""Typed recipes, read from and written to TOML, with dotted overrides.

A config is a frozen pydantic model that refuses unknown keys. A choice between mechanisms is a table with a `type`:

    mixer = "softmax"                         # short for
    mixer = { type = "softmax", heads = 4 }   # this

and the type is looked up in a closed, readable dict (`MIXERS`, `TASKS`, ...): a file can never name code to import.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from allyouneed.errors import ConfigError, unknown_name

LARGEST_RECIPE = 1 << 20  # bytes; a recipe is a page of text
DEEPEST_EXTENDS = 8
DEEPEST_SETTING = 32
MOST_UNKNOWN = 5  # unknown keys that a message names
WRONG_SHAPE = "wrong_shape"

Tree = dict[str, Any]
Place = tuple[str | int, ...]
C = TypeVar("C", bound="Config")


class Config(BaseModel):
    """The base of every config: immutable and typed; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, value: Any) -> Any:
        """Refuse unknown keys here, not in `parse`: the class is known only after `choice` has read the `type`."""
        unknown = [str(name) for name in value if name not in cls.model_fields] if isinstance(value, Mapping) else []
        if unknown:
            more = f"; and {len(unknown) - MOST_UNKNOWN:,} more" if len(unknown) > MOST_UNKNOWN else ""
            raise ValueError("; ".join(unknown_name(name, cls.model_fields) for name in unknown[:MOST_UNKNOWN]) + more)
        return value

    def ineffective_setting(self) -> str | None:
        """Describe a setting that has no effect with the others, or return None: `seed=3: has no effect with ...`.

        New recipes with one are refused (`training.effects`). Stored ones of earlier versions load all the same.
        """
        return None


def choice(table: Mapping[str, type[Config]], default: str | None = None) -> BeforeValidator:
    """Return a validator that reads the config of a mechanism: its name, or a table with a `type`.

    A table without a type has the `default` one, so that one field can be set alone (`--set model.mixer.heads=2`).
    A setting of another type is refused: it would have no effect.

    A field for one entry of a table is declared as `Annotated[SerializeAsAny[MixerConfig], choice(MIXERS)]`.
    """

    def read(value: Any) -> Any:
        if isinstance(value, Config):
            return value
        if isinstance(value, str):
            value = {"type": value}
        if not isinstance(value, Mapping):
            raise PydanticCustomError(WRONG_SHAPE, "should be a name or a table with a type")
        name = value.get("type", default)
        if not isinstance(name, str):
            raise ValueError(f"needs a type; known: {', '.join(sorted(table))}")
        if name not in table:
            raise ValueError(unknown_name(name, table))
        _refuse_ineffective(value, name, table)
        return table[name].model_validate({**value, "type": name})

    return BeforeValidator(read)


def _refuse_ineffective(value: Mapping[str, Any], name: str, table: Mapping[str, type[Config]]) -> None:
    """Raise ValueError for settings that only other types of the table have."""
    for key in value:
        others = [other for other, config in table.items() if key in config.model_fields]
        if others and name not in others:
            raise ValueError(f"{key} has no effect with type {name!r}; remove it, or use {' or '.join(others)}")


def parse(cls: type[C], tree: Mapping[str, Any], where: str = "") -> C:
    """Build a config from plain values. Errors name the place in the tree, what was found and what would be right."""
    try:
        return cls.model_validate(dict(tree))
    except ValidationError as error:
        problems = [(_place(tree, item), item) for item in error.errors()]
        lines = [_explain(place, item, where) for place, item in problems if not _other_form(place, item, problems)]
        raise ConfigError("; ".join(dict.fromkeys(lines))) from None


def _place(tree: Any, item: Any) -> Place:
    """Return the path of an error in the tree, without the names that pydantic gives to members of a union."""
    place: Place = ()
    for part in item["loc"]:
        if (isinstance(tree, Mapping) and part in tree) or (
            isinstance(tree, list) and isinstance(part, int) and part < len(tree)
        ):
            tree = tree[part]
            place += (part,)
    return (*place, item["loc"][-1]) if item["type"] == "missing" else place


def _other_form(place: Place, item: Any, problems: Sequence[tuple[Place, Any]]) -> bool:
    """Return True if the error is only about another form that the value could have had (one mixer, or a list)."""
    if item["type"] == "list_type":
        return any(other[: len(place)] == place for other, problem in problems if problem["type"] != "list_type")
    return item["type"] == WRONG_SHAPE and any(other[: len(place)] == place != other for other, _ in problems)


def _explain(place: Place, item: Any, where: str) -> str:
    parts = (where, ".".join(str(part) for part in place))
    prefix = "".join(f"{part}: " for part in parts if part)
    if item["type"] == "missing":
        return f"{prefix}is missing"
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] in ("too_long", "too_short"):
        limits = item["ctx"]
        least, most = limits.get("min_length"), limits.get("max_length")
        bound = f"at least {least}" if item["type"] == "too_short" else f"at most {most}"
        return f"{prefix}has {limits['actual_length']} items; should have {bound}"
    found = item.get("input")
    if item["type"] == "value_error" or isinstance(found, dict | list):
        return prefix + message
    return f"{prefix}{message}; found {found!r}"


def read_recipe(path: Path, depth: int = 0) -> Tree:
    """Read the plain values of a TOML file. `extends = "other.toml"` starts from another file in the same folder."""
    if depth > DEEPEST_EXTENDS:
        raise ConfigError(f"{path}: more than {DEEPEST_EXTENDS} files extend each other; is there a cycle?")
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_RECIPE + 1)
        if len(data) > LARGEST_RECIPE:
            raise ConfigError(f"{path}: a recipe has at most {LARGEST_RECIPE:,} bytes")
        tree = tomllib.loads(data.decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `allyouneed list recipes` shows the built-in ones") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as TOML: {error}") from None
    base = tree.pop("extends", None)
    if base is None:
        return tree
    if not isinstance(base, str) or Path(base).name != base:
        raise ConfigError(f"{path}: extends: {base!r} is not the name of a file in the same folder")
    return merge(read_recipe(path.parent / base, depth + 1), tree)


def merge(below: Tree, above: Mapping[str, Any]) -> Tree:
    """Return `below` updated with `above`, table by table. A table with another `type` replaces the one below."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, str) and isinstance(value, Mapping):
            old = {"type": old}  # a bare name ("softmax") becomes a table when one of its fields is set
        merged[key] = value
        if isinstance(old, dict) and isinstance(value, Mapping):
            kind = old.get("type")
            merged[key] = merge(old, value) if value.get("type", kind) == kind else value
    return merged


def override(tree: Tree, pairs: Sequence[str]) -> Tree:
    """Apply overrides such as `["model.layers=3"]` to a tree. Values are read as TOML, or as text if they are not.

    They are combined before they are applied, so that their order does not matter unless two set the same key: then
    the later one wins.
    """
    above: Tree = {}
    if isinstance(pairs, str):
        raise ConfigError(f"settings: a single text {pairs!r}; should be a list, such as ['model.layers=3']")
    for pair in pairs:
        if not isinstance(pair, str):
            raise ConfigError(f"setting {pair!r}: should be a text such as 'model.layers=3'")
        key, equals, text = pair.partition("=")
        *parents, last = key.split(".")
        if not equals or not all([*parents, last]):
            raise ConfigError(f"setting {pair}: should look like model.layers=3")
        if len(parents) > DEEPEST_SETTING:
            raise ConfigError(f"setting {pair[:40]}...: no setting is more than {DEEPEST_SETTING} tables deep")
        one: Tree = {last: _value(text, pair)}
        for part in reversed(parents):
            one = {part: one}
        above = _combine(above, one, pair)
    return merge(tree, above)


def _combine(earlier: Tree, later: Tree, pair: str) -> Tree:
    """Return both trees in one. Unlike in `merge`, a `type` does not discard other settings of its table."""
    combined = dict(earlier)
    for key, value in later.items():
        old = combined.get(key)
        if key in combined and (isinstance(old, dict) or isinstance(value, dict)):
            combined[key] = _combine(_table(old, key, pair), _table(value, key, pair), pair)
        else:
            combined[key] = value
    return combined


def _table(value: Any, key: str, pair: str) -> Tree:
    """Return the table that a value is short for."""
    if isinstance(value, str):
        return {"type": value}
    if not isinstance(value, dict):
        raise ConfigError(f"setting {pair}: another setting gives {key} as {value!r}, not as a table; remove one")
    return value


def _value(text: str, pair: str) -> Any:
    try:
        tree = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        tree = {}
    if len(tree) == 1:
        return tree["value"]
    if text.startswith(("[", "{")):  # meant as a list or a table, whose quotes a shell has removed
        raise ConfigError(f"setting {pair}: is not a {'list' if text[0] == '[' else 'table'} of TOML{_quoted(pair)}")
    return text


def _quoted(pair: str) -> str:
    """Return the advice to quote the texts of a list."""
    key, _, text = pair.partition("=")
    items = text.removeprefix("[").removesuffix("]").split(",")
    if not text.startswith("[") or not text.endswith("]") or any(set(item) & set("[]{}\"'=") for item in items):
        return "; texts inside need quotes, and the shell needs single quotes around all of it"
    listed = ",".join(f'"{item.strip()}"' for item in items)
    return f"; texts in it need quotes, and the shell needs quotes around all of it: --set '{key}=[{listed}]'"


def to_toml(config: Config) -> str:
    """Return the config as TOML with every value written out, so that `diff` compares two runs."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
