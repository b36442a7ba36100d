"""The C interface is read from kernels.h: arguments and fields have its names, and nothing else is accepted."""

import ctypes
import re
from pathlib import Path

import pytest

from allyouneed.kernels import build, header
from allyouneed.kernels.header import HEADER, parse

SOURCES = [path.read_text() for path in Path(header.__file__).parent.glob("*.c")]


def test_structs_and_functions() -> None:
    text = """
    #include <stdint.h>
    /* A comment with struct words { i64 x; }; */
    struct pair {
        const float *x, *y;
        i64 count, rows;
    };
    struct both {
        struct pair one, other;
        double scale;
    };
    i64 size(const struct both *both, i64 rows,
             bool whole);
    void run(float *x, float scale);
    """
    found = parse("\n".join(line.strip() for line in text.splitlines()))
    assert [name for name, _ in found.structs["pair"]._fields_] == ["x", "y", "count", "rows"]
    assert found.structs["both"]._fields_[1] == ("other", found.structs["pair"])
    assert found.functions["size"].result is ctypes.c_int64
    parameters = {"both": ctypes.c_void_p, "rows": ctypes.c_int64, "whole": ctypes.c_bool}
    assert found.functions["size"].parameters == parameters
    assert found.functions["run"].result is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int x;", "neither a struct nor a function"),
        ("void f(short x);", "unknown type 'short'"),
        ("void f(struct gone *x);", "unknown type 'struct gone'"),
        ("void f(float **);", "cannot read"),
        ("void f(float x[3]);", "cannot read"),
        ("void f(int8_t x);", "passed by pointer only"),
        ("void f();", "cannot read"),
    ],
)
def test_anything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


@pytest.mark.parametrize("name", HEADER.functions)
def test_definitions_have_the_names_of_the_header(name: str) -> None:
    """The compiler compares types only: two swapped sizes would compile."""
    [parameters] = [
        found[1] for source in SOURCES if (found := re.search(rf"^\w+ {name}\((.*?)\) \{{", source, re.M | re.S))
    ]
    assert re.findall(r"(\w+)(?:,|$)", parameters) == list(HEADER.functions[name].parameters)


@pytest.mark.skipif(build.library() is None, reason="no C compiler")
@pytest.mark.parametrize("arguments", [{}, {"row": 3}, {"rows": 3, "columns": 4}])
def test_a_wrong_name_raises(arguments: dict[str, int]) -> None:
    assert build.functions().tile_rows(rows=3) == 0
    with pytest.raises(TypeError):
        build.functions().tile_rows(**arguments)
