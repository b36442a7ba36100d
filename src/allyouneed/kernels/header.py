"""The C interface, read from kernels.h: ctypes structs and functions whose arguments are passed by name.

The header is the only place that lists parameters and fields. A call with a missing, unknown or misspelt name raises
TypeError instead of reading the wrong memory. Only the few forms that kernels.h uses are understood; anything else
raises ValueError.
"""

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "kernels.h"
_NUMBERS = {"i64": ctypes.c_int64, "float": ctypes.c_float, "double": ctypes.c_double, "bool": ctypes.c_bool}
_POINTEES = {*_NUMBERS, "int8_t", "uint8_t", "uint16_t", "int32_t"}
_IGNORED = re.compile(r"/\*.*?\*/|^#include.*?$|^typedef int64_t i64;$", re.DOTALL | re.MULTILINE)
_STRUCT = re.compile(r"struct (\w+) \{(.*?)\};", re.DOTALL)
_FUNCTION = re.compile(r"(void|i64) (\w+)\((.*?)\);", re.DOTALL)
_DECLARATION = re.compile(r"(?:const )?((?:struct )?\w+) (\**\w+(?:, \**\w+)*)$")


@dataclass(frozen=True)
class CFunction:
    """A C function: its result, and its parameters in order."""

    result: Any
    parameters: dict[str, Any]

    def bind(self, library: ctypes.CDLL, name: str) -> Any:
        """Return the function of a loaded library; it takes keyword arguments and releases the interpreter's lock."""
        prototype = ctypes.CFUNCTYPE(self.result, *self.parameters.values())
        return prototype((name, library), tuple((1, parameter) for parameter in self.parameters))


@dataclass(frozen=True)
class Header:
    """The structs and functions of a header, by name."""

    structs: dict[str, Any]
    functions: dict[str, CFunction]


def parse(text: str) -> Header:
    """Read a header; raise ValueError if it holds anything but structs and functions of known types."""
    structs: dict[str, Any] = {}
    functions: dict[str, CFunction] = {}
    text = _IGNORED.sub("", text)
    for name, body in _STRUCT.findall(text):
        lines = [line for line in _flat(body).split(";") if line.strip()]
        fields = [field for line in lines for field in _declared(line.strip(), structs)]
        structs[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    for result, name, body in _FUNCTION.findall(text):
        parameters = [field for one in body.split(",") for field in _declared(_flat(one), structs)]
        functions[name] = CFunction(None if result == "void" else _NUMBERS[result], dict(parameters))
    if rest := _FUNCTION.sub("", _STRUCT.sub("", text)).strip():
        raise ValueError(f"kernels.h: {rest.splitlines()[0]!r} is neither a struct nor a function")
    return Header(structs, functions)


def _declared(text: str, structs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the names and types of a declaration such as `const float *gamma, *beta`."""
    found = _DECLARATION.match(text)
    if found is None:
        raise ValueError(f"kernels.h: cannot read the declaration {text!r}")
    kind, names = found[1], found[2].split(", ")
    known = kind.removeprefix("struct ") in structs if kind.startswith("struct ") else kind in _POINTEES
    if not known:
        raise ValueError(f"kernels.h: unknown type {kind!r} in {text!r}")
    return [(name.lstrip("*"), _type(kind, pointer=name.startswith("*"), structs=structs)) for name in names]


def _type(kind: str, pointer: bool, structs: dict[str, Any]) -> Any:
    if pointer:
        return ctypes.c_void_p
    if kind.startswith("struct "):
        return structs[kind.removeprefix("struct ")]
    if kind not in _NUMBERS:
        raise ValueError(f"kernels.h: {kind!r} is passed by pointer only")
    return _NUMBERS[kind]


def _flat(text: str) -> str:
    return " ".join(text.split())


HEADER = parse(PATH.read_text())
