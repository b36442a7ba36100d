"""The names that every program starts with: the base s-ops and the library (`library.rasp`)."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from allyouneed.rasp import api
from allyouneed.rasp.syntax import parse
from allyouneed.rasp.values import NamedNode, Value


@cache
def library(compat: bool) -> Sequence[Any]:
    """Return the statements of the library."""
    return parse(files("allyouneed.rasp").joinpath("library.rasp").read_text(encoding="utf-8"), compat)


def base_names() -> dict[str, Value]:
    """Return the built-in constants and s-ops."""
    names: dict[str, Value] = {"True": True, "False": False, "indices": NamedNode(api.indices, "indices")}
    for convert in ("asis", "str", "int", "float", "bool"):
        names[f"tokens_{convert}"] = NamedNode(getattr(api, f"tokens_{convert}"), f"tokens_{convert}")
    names["tokens"] = NamedNode(api.tokens, "tokens")
    return names
