"""Draws a compiled program on an input: every selector beside the model's attention weights.

Each head has two grids, whose first column is BOS, the sink: the expected selection, and the softmax weights, which
shade the cells. Below the heads of a layer are the functions of its feed-forward. The embedding is drawn above all
layers, the output below them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from allyouneed.rasp.atoms import Atom
from allyouneed.rasp.compiler.attention import AttentionTrace, HeadAttention
from allyouneed.rasp.compiler.report import LayerReport
from allyouneed.rasp.drawing.blocks import (
    CELL,
    GAP,
    SIZE,
    SMALL,
    Drawable,
    LayerBox,
    Lines,
    arrow,
    cell_width,
    label_width,
    paint_column,
    paint_grid,
    paint_row,
    shown,
    stack,
)
from allyouneed.rasp.drawing.canvas import (
    FAINT,
    INK,
    WHITE,
    Box,
    Canvas,
    Stroke,
    Text,
    hue,
    printable,
    text_width,
    tint,
)
from allyouneed.rasp.errors import RaspLimitError
from allyouneed.rasp.formatting import given_text
from allyouneed.rasp.labels import cut
from allyouneed.words import counted

LONGEST: Final = 30  # positions
TITLE: Final = 52
NARROW, WIDE = 24.0, 33.0  # cells of the selector, and of weights with their numbers


def draw_compiled(view: AttentionTrace) -> Canvas:
    """Draw a traced program."""
    if len(view.given) > LONGEST:
        raise RaspLimitError(
            f"draw: an input of {len(view.given)} elements; at most {LONGEST} can be drawn: shorten the input"
        )
    report = view.compiled.report
    bands = [LayerBox("Embedding", "token and position", hue(0), [_inputs(view)])]
    for number, (heads, layer) in enumerate(zip(view.heads, report.layers, strict=True), start=1):
        blocks: list[Drawable] = []
        if heads:
            blocks.append(Lines([_HeadBlock(view, head, place, number) for place, head in enumerate(heads, start=1)]))
        if layer.functions:
            blocks.append(_Lists(["feed-forward", *_functions(layer)], hue(number)))
        if blocks:
            bands.append(LayerBox(f"Layer {number}", _about(heads, layer), hue(number), blocks))
    rows: list[tuple[str, Sequence[Atom]]] = [("program", view.right), ("model", view.found)]
    bands.append(LayerBox("Output", "the values with the highest logits", hue(0), [_Rows(rows)]))
    title = f"{view.name}({given_text(view.given)}), compiled"
    largest = max((head.difference for heads in view.heads for head in heads), default=0.0)
    kind = "decoder" if view.compiled.causal else "encoder"
    about = (
        f"{kind} of {counted(len(report.layers), 'layer')}, width {report.width}, {report.parameters:,} parameters; "
        f"no weight of its attention is further than {largest:.0e} from what is selected"
    )
    return stack(title, about, bands, arrow)


def _about(heads: Sequence[HeadAttention], layer: LayerReport) -> str:
    neurons = sum(group.neurons for group in layer.functions)
    return f"{counted(len(heads), 'head')}, {counted(neurons, 'neuron')}"


def _inputs(view: AttentionTrace) -> Drawable:
    slots: dict[str, int] = {}
    for slot in view.compiled.report.slots:
        if slot.layer == 0:
            slots[slot.name] = slots.get(slot.name, 0) + 1
    known = [f"{name}: {counted(count, 'number')}" for name, count in slots.items()]
    return Lines([_Rows([("tokens", list(view.given))]), _Lists(["residual stream", *known], hue(0))])


def _functions(layer: LayerReport) -> list[str]:
    return [f"{cut(printable(one.name), 2 * TITLE)}: {counted(one.neurons, 'neuron')}" for one in layer.functions]


@dataclass(eq=False)
class _Rows:
    """Labelled rows of values."""

    rows: Sequence[tuple[str, Sequence[Atom]]]

    def __post_init__(self) -> None:
        self.cells = cell_width(values for _, values in self.rows)
        self.labels = max(text_width(name, SIZE) for name, _ in self.rows) + 14
        self.width = 2 * GAP + self.labels + self.cells * len(self.rows[0][1])
        self.height = 2 * GAP + len(self.rows) * (CELL + 5) - 5

    def paint(self, canvas: Canvas, x: float, y: float) -> None:
        canvas.add(Box(x, y, self.width, self.height, WHITE, tint(hue(0), 0.3), radius=7))
        for number, (name, values) in enumerate(self.rows):
            top = y + GAP + number * (CELL + 5)
            canvas.add(Text(x + GAP, top + CELL / 2, name, SIZE))
            paint_row(canvas, x + GAP + self.labels, top, self.cells, values, hue(0))


@dataclass(eq=False)
class _Lists:
    """A heading and lines of text."""

    lines: Sequence[str]
    colour: str

    def __post_init__(self) -> None:
        self.width = 2 * GAP + max(text_width(line, SMALL) for line in self.lines)
        self.height = 2 * GAP + 16 * len(self.lines) - 4

    def paint(self, canvas: Canvas, x: float, y: float) -> None:
        canvas.add(Box(x, y, self.width, self.height, WHITE, tint(self.colour, 0.3), radius=7))
        for number, line in enumerate(self.lines):
            place = x + GAP, y + GAP + 5 + number * 16
            if number:
                canvas.add(Text(*place, line, SMALL, INK))
            else:
                canvas.add(Text(*place, line, SIZE, self.colour, mono=False, bold=True))


@dataclass(eq=False)
class _HeadBlock:
    """A head: the selector on the left, the attention weights on the right."""

    view: AttentionTrace
    head: HeadAttention
    place: int
    layer: int

    def __post_init__(self) -> None:
        self.length = len(self.view.given)
        self.name = cut(printable(self.head.selector), TITLE) + (f", part {self.head.part}" if self.head.part else "")
        self.about = "counts: BOS is selected too" if self.head.counts else "reads; BOS if nothing is selected"
        self.queries = cell_width([list(self.view.given)])
        self.side = self.queries + 4
        across = 2 * self.side + (NARROW + WIDE) * (self.length + 1) + 26
        self.width = 2 * GAP + max(across, 54 + text_width(self.name, SIZE), label_width(self.about))
        self.height = 2 * GAP + 62 + CELL + 3 + CELL * self.length

    def paint(self, canvas: Canvas, x: float, y: float) -> None:
        colour, head = hue(self.layer), self.head
        canvas.add(Box(x, y, self.width, self.height, WHITE, tint(colour, 0.3), radius=7))
        x, y = x + GAP, y + GAP
        canvas.add(
            Text(x, y + 6, f"head {self.place}", SIZE, colour, mono=False, bold=True),
            Text(x + 54, y + 6, self.name, SIZE, INK, bold=True, tooltip=printable(head.selector)),
            Text(x, y + 23, self.about, SMALL, FAINT),
        )
        left, right = x + self.side, x + 2 * self.side + NARROW * (self.length + 1) + 26
        selected = [[float(weight > 0) for weight in row] for row in head.expected.tolist()]
        self._paint_side(canvas, left, y + 62, NARROW, "selector", selected)
        weights = head.weights.tolist()
        self._paint_side(canvas, right, y + 62, WIDE, "attention", weights)
        for i, row in enumerate(weights):
            for j, weight in enumerate(row):
                if weight >= 0.005:
                    place = right + (j + 0.5) * WIDE, y + 62 + CELL + 3 + (i + 0.5) * CELL
                    canvas.add(Text(*place, _weight(weight), 10, WHITE if weight > 0.45 else INK, "middle"))

    def _paint_side(
        self, canvas: Canvas, x: float, y: float, width: float, what: str, weights: Sequence[Sequence[float]]
    ) -> None:
        colour = hue(self.layer)
        canvas.add(Text(x, y - 12, what, 11, colour, mono=False, bold=True))
        canvas.add(Text(x + width / 2, y + CELL / 2, "bos", 10, FAINT, "middle"))
        tokens = [cut(shown(atom), 3 if width < WIDE else 4) for atom in self.view.given]
        paint_row(canvas, x + width, y, width, tokens, colour)
        top = y + CELL + 3
        paint_column(canvas, x - self.side, top, self.queries, list(self.view.given), colour)
        paint_grid(canvas, x, top, width, weights, colour)
        canvas.add(Stroke(x + width, top, x + width, top + CELL * self.length, tint(colour, 0.6), 2))


def _weight(weight: float) -> str:
    return "1" if weight > 0.9995 else f"{weight:.2f}".removeprefix("0")
