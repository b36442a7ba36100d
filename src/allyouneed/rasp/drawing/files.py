"""Drawings as files: .svg or .png."""

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final
from zlib import crc32

from allyouneed.rasp.drawing.canvas import Canvas
from allyouneed.rasp.drawing.program import draw
from allyouneed.rasp.errors import RaspError
from allyouneed.rasp.formatting import given_text
from allyouneed.rasp.graph import Input, Node
from allyouneed.rasp.interpreter import DrawHook
from allyouneed.rasp.values import NamedNode

FOLDER: Final = "comp_flows"


def file_name(name: str, given: Input) -> str:
    """Return a file name such as reverse(hello).svg. If characters were replaced, a checksum keeps it unique."""
    text = f"{name}({given if isinstance(given, str) else given_text(given)})"
    safe = re.sub(r"[^\w\-+=.,()\[\]{}' ]", "_", text, flags=re.ASCII)[:100]
    return f"{safe}.svg" if safe == text else f"{safe}-{crc32(text.encode('utf-8', 'surrogatepass')):08x}.svg"


def save_drawing(picture: Canvas, path: str | Path) -> Path:
    """Write a drawing as SVG or PNG, according to the suffix."""
    path = Path(path)
    if path.suffix.lower() not in (".svg", ".png"):
        raise RaspError(f"{path}: unknown suffix {path.suffix!r}; should be .svg or .png")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".png":
            from allyouneed.rasp.drawing.png import save_png

            save_png(picture, path)
        else:
            path.write_text(picture.svg(), encoding="utf-8")
    except OSError as error:
        raise RaspError(f"cannot write {path}: {error.strerror}") from error
    return path


def write_drawings(report: Callable[[Path], object] = lambda path: None) -> DrawHook:
    """Return the hook for `draw(s-op, input);`: write a file below the current folder and report its path.

    Different drawings with one name (in a loop, say) get numbers: x(ab).svg, x(ab)-2.svg.
    """
    written: dict[str, dict[bytes, int]] = {}

    def write(named: NamedNode, given: Input, names: Mapping[Node, str]) -> None:
        picture = draw(named.node, given, {**names, named.node: named.name or "out"})
        name = file_name(named.name or "out", given)
        others = written.setdefault(name, {})
        number = others.setdefault(sha256(picture.svg().encode()).digest(), len(others) + 1)
        report(
            save_drawing(picture, Path(FOLDER) / (name if number == 1 else f"{name.removesuffix('.svg')}-{number}.svg"))
        )

    return write
