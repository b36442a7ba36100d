"""The parts that drawings share: rows and columns of cells, n x n grids, titled boxes, blocks in lines."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from allyouneed.rasp.atoms import Atom
from allyouneed.rasp.drawing.canvas import (
    FAINT,
    INK,
    LINE,
    WHITE,
    Box,
    Canvas,
    Stroke,
    Text,
    printable,
    text_width,
    tint,
)
from allyouneed.rasp.labels import cut

CELL: Final = 22.0  # height, and minimum width
SIZE: Final = 12.0
SMALL: Final = 10.5
PAD: Final = 14.0
GAP: Final = 12.0
SHOWN: Final = 9  # columns of text in a cell
WIDEST: Final = 1240.0  # maximum width of a line of blocks


class Drawable(Protocol):
    """A part of a drawing. Its size is known before it is painted."""

    width: float
    height: float

    def paint(self, canvas: Canvas, x: float, y: float) -> None: ...


def shown(atom: Atom) -> str:
    """Return the full text of an atom in a cell: as the language prints it, but 1.0 as 1."""
    if isinstance(atom, bool):
        return "T" if atom else "F"
    return f"{round(atom, 3):g}" if isinstance(atom, float) else printable(str(atom))


def cell_width(rows: Iterable[Sequence[Atom]]) -> float:
    """Return a width that fits every value of some rows."""
    widest = max((text_width(cut(shown(atom), SHOWN), SIZE) for row in rows for atom in row), default=0.0)
    return max(CELL, round(widest + 9))


def label_width(text: str) -> float:
    return text_width(text, SMALL)


def paint_cell(canvas: Canvas, x: float, y: float, width: float, atom: Atom, colour: str, strong: bool = False) -> None:
    """Paint one value. True values have the layer's colour as background."""
    whole = shown(atom)
    fill = tint(colour, 0.22) if atom is True else tint(colour, 0.10) if strong else WHITE
    ink = FAINT if atom is False else INK
    canvas.add(
        Box(x, y, width, CELL, fill, tint(colour, 0.45) if strong else LINE),
        Text(x + width / 2, y + CELL / 2, cut(whole, SHOWN), SIZE, ink, "middle", bold=strong, tooltip=whole),
    )


def paint_row(
    canvas: Canvas, x: float, y: float, width: float, values: Sequence[Atom], colour: str, strong: bool = False
) -> None:
    """Paint cells of one width side by side."""
    for place, atom in enumerate(values):
        paint_cell(canvas, x + place * width, y, width, atom, colour, strong)


def paint_column(canvas: Canvas, x: float, y: float, width: float, values: Sequence[Atom], colour: str) -> None:
    for place, atom in enumerate(values):
        paint_cell(canvas, x, y + place * CELL, width, atom, colour)


def paint_grid(
    canvas: Canvas, x: float, y: float, width: float, weights: Sequence[Sequence[float]], colour: str
) -> None:
    """Paint a cell for every pair of positions, darker for larger weights. Equal neighbours share a rectangle."""
    across, down = len(weights[0]) * width, len(weights) * CELL
    canvas.add(Box(x, y, across, down, tint(colour, 0.07)))
    for number, row in enumerate(weights):
        begin = 0
        for place in range(1, len(row) + 1):
            if place == len(row) or row[place] != row[begin]:
                if row[begin] > 0:
                    fill = tint(colour, 0.07 + 0.93 * min(1.0, float(row[begin])))
                    canvas.add(Box(x + begin * width, y + number * CELL, (place - begin) * width, CELL, fill))
                begin = place
    for place in range(1, len(weights[0])):
        canvas.add(Stroke(x + place * width, y, x + place * width, y + down, WHITE))
    for place in range(1, len(weights)):
        canvas.add(Stroke(x, y + place * CELL, x + across, y + place * CELL, WHITE))
    canvas.add(Box(x, y, across, down, stroke=tint(colour, 0.6)))


@dataclass
class Lines:
    """Blocks side by side, wrapped into lines."""

    blocks: Sequence[Drawable]

    def __post_init__(self) -> None:
        self.lines: list[list[Drawable]] = [[]]
        for block in self.blocks:
            used = sum(one.width + GAP for one in self.lines[-1])
            if self.lines[-1] and used + block.width > WIDEST:
                self.lines.append([])
            self.lines[-1].append(block)
        self.width = max((sum(one.width + GAP for one in line) - GAP for line in self.lines if line), default=0.0)
        heights = [max((one.height for one in line), default=0.0) for line in self.lines]
        self.height = sum(heights) + GAP * (len(heights) - 1)

    def paint(self, canvas: Canvas, x: float, y: float) -> None:
        for line in self.lines:
            at = x
            for block in line:
                block.paint(canvas, at, y)
                at += block.width + GAP
            y += max((one.height for one in line), default=0.0) + GAP


@dataclass
class LayerBox:
    """The box of a layer: a title, and blocks from top to bottom."""

    title: str
    about: str
    colour: str
    blocks: Sequence[Drawable]

    def __post_init__(self) -> None:
        heading = text_width(self.title, 15, mono=False, bold=True) + 14 + text_width(self.about, 12, mono=False)
        self.width = 2 * PAD + max([heading, *(block.width for block in self.blocks)])
        self.height = PAD + 22 + sum(block.height + GAP for block in self.blocks) + PAD - GAP + 4

    def paint(self, canvas: Canvas, x: float, y: float) -> None:
        canvas.add(
            Box(x, y, self.width, self.height, tint(self.colour, 0.06), tint(self.colour, 0.4), radius=10),
            Text(x + PAD, y + PAD + 7, self.title, 15, self.colour, mono=False, bold=True),
        )
        after = text_width(self.title, 15, mono=False, bold=True) + 14
        canvas.add(Text(x + PAD + after, y + PAD + 8, self.about, 12, FAINT, mono=False))
        y += PAD + 26
        for block in self.blocks:
            block.paint(canvas, x + PAD, y)
            y += block.height + GAP


def stack(title: str, about: str, bands: Sequence[LayerBox], between: Callable[[Canvas, float, float], None]) -> Canvas:
    """Return a whole drawing: a title, and layers of equal width from top to bottom."""
    canvas = Canvas(title)
    margin, y = 20.0, 20.0
    heading = cut(printable(title), 100)
    widest = max([band.width for band in bands] + [text_width(heading, 17), text_width(about, 12, mono=False)])
    canvas.add(
        Text(margin, y + 9, heading, 17, INK, bold=True, tooltip=printable(title)),
        Text(margin, y + 32, about, 12, FAINT, mono=False),
    )
    y += 50
    for number, band in enumerate(bands):
        band.width = widest
        if number:
            between(canvas, margin + widest / 2, y - 18)
        band.paint(canvas, margin, y)
        y += band.height + 18
    canvas.width, canvas.height = widest + 2 * margin, y - 18 + margin
    return canvas


def arrow(canvas: Canvas, x: float, y: float) -> None:
    """Paint the arrow to the next layer, 18 pixels below."""
    canvas.add(
        Stroke(x, y + 3, x, y + 14, FAINT, 1.5),
        Stroke(x - 4, y + 10, x, y + 14.5, FAINT, 1.5),
        Stroke(x + 4, y + 10, x, y + 14.5, FAINT, 1.5),
    )
