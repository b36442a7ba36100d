"""The shapes of a drawing: rectangles, lines and text at pixel positions, written as SVG (or PNG, `png.py`).

No browser measures the text: its fonts have a known width (0.602 of the size for the monospaced one). Text that is too
long is truncated, with the full text as a tooltip. Text comes from programs and inputs, so it is escaped, and
unprintable characters are written as \\n, \\x00, \\u202e.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal
from xml.sax.saxutils import escape, quoteattr

from allyouneed.rasp.labels import columns, cut

MONO: Final = "'DejaVu Sans Mono', Menlo, Consolas, monospace"
SANS: Final = "'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"
MONO_WIDTH: Final = 0.615  # of the size: 0.602, plus what renderers round up
SANS_WIDTH: Final = 0.56
BOLD: Final = 1.2  # relative width of bold letters; monospaced ones do not widen
TOOLTIP: Final = 400  # columns

INK: Final = "#1e293b"
FAINT: Final = "#64748b"
LINE: Final = "#cbd5e1"
WHITE: Final = "#ffffff"
# Layer 0 first; the others repeat. Dark enough for white text; titles distinguish them in greyscale.
HUES: Final = ("#475569", "#2563eb", "#0f766e", "#7c3aed", "#b45309", "#be123c", "#15803d")

Anchor = Literal["start", "middle", "end"]


def hue(layer: int) -> str:
    """Return the colour of a layer."""
    return HUES[0] if layer == 0 else HUES[1 + (layer - 1) % (len(HUES) - 1)]


def tint(colour: str, share: float) -> str:
    """Return a colour blended with white: 1 is the colour, 0 white."""
    parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return "#" + "".join(f"{round(255 + (part - 255) * share):02x}" for part in parts)


def escaped(text: str) -> str:
    """Replace unprintable characters (control characters, direction changes) by escapes."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable(text: str) -> str:
    """Return text with visible blanks, a sign for the empty string, and escapes."""
    if not text.strip(" "):
        return "␣" * len(text) if text else "∅"
    return escaped(text)


def text_width(text: str, size: float, mono: bool = True, bold: bool = False) -> float:
    return columns(text) * size * (MONO_WIDTH if mono else SANS_WIDTH * (BOLD if bold else 1.0))


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    fill: str = "none"
    stroke: str = "none"
    radius: float = 0.0
    dashed: bool = False


@dataclass(frozen=True)
class Stroke:
    x1: float
    y1: float
    x2: float
    y2: float
    colour: str = LINE
    width: float = 1.0


@dataclass(frozen=True)
class Text:
    x: float
    y: float  # middle of the line
    text: str
    size: float = 12.0
    colour: str = INK
    anchor: Anchor = "start"
    mono: bool = True
    bold: bool = False
    tooltip: str = ""


@dataclass
class Canvas:
    """Shapes, lowest first, and the size of the drawing."""

    title: str
    shapes: list[Box | Stroke | Text] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0

    def add(self, *shapes: Box | Stroke | Text) -> None:
        self.shapes += shapes

    def svg(self) -> str:
        """Return a self-contained SVG document."""
        width, height = _number(self.width), _number(self.height)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                f'viewBox="0 0 {width} {height}" role="img">',
                f"<title>{escape(printable(cut(self.title, TOOLTIP)))}</title>",
                f"<style>text{{dominant-baseline:central;white-space:pre}} .m{{font-family:{MONO}}} "
                f".s{{font-family:{SANS}}}</style>",
                f'<rect width="{width}" height="{height}" fill="{WHITE}"/>',
                *self._lines(),
                "</svg>\n",
            ]
        )

    def _lines(self) -> Iterator[str]:
        for shape in self.shapes:
            if isinstance(shape, Box):
                yield _box(shape)
            elif isinstance(shape, Stroke):
                yield _stroke(shape)
            else:
                yield _text(shape)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _box(box: Box) -> str:
    x, y, width, height = map(_number, (box.x, box.y, box.width, box.height))
    radius = f' rx="{_number(box.radius)}"' if box.radius else ""
    stroke = f' stroke="{box.stroke}"' if box.stroke != "none" else ""
    dashes = ' stroke-dasharray="3 2"' if box.dashed else ""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}"{radius} fill="{box.fill}"{stroke}{dashes}/>'


def _stroke(stroke: Stroke) -> str:
    x1, y1, x2, y2 = map(_number, (stroke.x1, stroke.y1, stroke.x2, stroke.y2))
    width = f' stroke-width="{_number(stroke.width)}"' if stroke.width != 1 else ""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{stroke.colour}"{width}/>'


def _text(text: Text) -> str:
    anchor = f' text-anchor="{text.anchor}"' if text.anchor != "start" else ""
    bold = ' font-weight="bold"' if text.bold else ""
    tooltip = (
        f"<title>{escape(escaped(cut(text.tooltip, TOOLTIP)))}</title>"
        if text.tooltip and text.tooltip != text.text
        else ""
    )
    kind = quoteattr("m" if text.mono else "s")
    return (
        f'<text class={kind} x="{_number(text.x)}" y="{_number(text.y)}" font-size="{_number(text.size)}" '
        f'fill="{text.colour}"{anchor}{bold}>{escape(escaped(text.text))}{tooltip}</text>'
    )
