"""How an s-op comes about on an input, as a picture: layers from top to bottom, heads side by side.

    layer 0      the input, the indices, and what is computed from them at every position by itself
    layer n      a box for every head: keys ("other") above, queries ("me") on the left, the grid of the selector, what
                 is read through it, and the result; then a table of what the feed-forward computes from that

Layers and heads are those of `layers.py`. Every row has a number, by which others say what they are computed from.
Hidden are constants and what has no name and goes into one elementwise result only: it is part of that one's title.

The picture is SVG text of our own making: no other program is needed. Paper: Weiss, Goldberg and Yahav 2021, figure 1.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final
from zlib import crc32

from allyouneed.rasp.atoms import Atom
from allyouneed.rasp.display import given_text
from allyouneed.rasp.drawing.blocks import (
    CELL,
    GAP,
    SIZE,
    SMALL,
    Band,
    Block,
    Lines,
    arrow,
    cell_width,
    label_width,
    paint_cell,
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
    cut,
    hue,
    printable,
    text_width,
    tint,
)
from allyouneed.rasp.drawing.titles import expression, title
from allyouneed.rasp.errors import RaspError, RaspLimitError
from allyouneed.rasp.evaluate import Run
from allyouneed.rasp.graph import (
    Aggregate,
    Combined,
    Constant,
    Indices,
    Input,
    Map,
    Node,
    Select,
    Selector,
    SOp,
    Tokens,
    in_order,
)
from allyouneed.rasp.layers import Head, Layer, Schedule, schedule
from allyouneed.rasp.values import Flow

LONGEST: Final = 40  # positions
MOST: Final = 400  # rows of values, and comparisons of all heads
TITLE: Final = 44  # columns of a title
THREADS: Final = 160  # lines from values to results, beyond which none is drawn
FOLDER: Final = "comp_flows"


def draw(node: SOp | Selector, given: Input, names: Mapping[Node, str] | None = None) -> Canvas:
    """The picture of an s-op or selector on an input. `names`: what its nodes are called."""
    return _picture(_Flow(node, given, names or {}))


def file_name(name: str, given: Input) -> str:
    """reverse(hello).svg; where something cannot stand in a file name, a number tells apart what would be the same."""
    text = f"{name}({given if isinstance(given, str) else given_text(given)})"
    safe = re.sub(r"[^\w\-+=.,()\[\]{}' ]", "_", text, flags=re.ASCII)[:100]
    return f"{safe}.svg" if safe == text else f"{safe}-{crc32(text.encode('utf-8', 'surrogatepass')):08x}.svg"


def save(picture: Canvas, path: str | Path) -> Path:
    """Writes a picture: SVG or PNG, as the file's name says."""
    path = Path(path)
    if path.suffix.lower() not in (".svg", ".png"):
        raise RaspError(f"{path}: a picture is an .svg or a .png file")
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


def into_folder(
    names: Mapping[Node, str], told: Callable[[Path], object] = lambda path: None
) -> Callable[[Flow, Input], None]:
    """What `draw(s-op, input);` does: a file in a folder of the current one, of which `told` hears.

    Different pictures of one name (in a loop, say) get numbers: x(ab).svg, x(ab)-2.svg. `names` may grow in between.
    """
    written: dict[str, dict[bytes, int]] = {}

    def write(flow: Flow, given: Input) -> None:
        picture = draw(flow.node, given, {**names, flow.node: flow.name or "out"})
        name = file_name(flow.name or "out", given)
        others = written.setdefault(name, {})
        number = others.setdefault(sha256(picture.svg().encode()).digest(), len(others) + 1)
        told(save(picture, Path(FOLDER) / (name if number == 1 else f"{name.removesuffix('.svg')}-{number}.svg")))

    return write


class _Flow:
    """All that is drawn: values, numbers of rows, and from which rows each comes."""

    def __init__(self, root: SOp | Selector, given: Input, names: Mapping[Node, str]) -> None:
        self.root, self.given, self.names = root, given, names
        self.run = Run(given)
        self.length = len(self.run.given)
        if self.length > LONGEST:
            raise RaspLimitError(f"draw: an input of {self.length} elements; at most {LONGEST} can be drawn")
        self.schedule: Schedule = schedule([root])
        inputs = self.schedule.layers[0].elementwise
        inputs.sort(
            key=lambda sop: 0 if isinstance(sop, Tokens) else 1 if isinstance(sop, Indices) else 2
        )  # tokens, indices, others
        self.run.value(root)
        self.hidden = self._hidden()
        self.number: dict[Node, int] = {}
        for layer in self.schedule.layers:
            for sop in (*(one for head in layer.heads for one in head.aggregates), *layer.elementwise):
                if sop not in self.hidden:
                    self.number[sop] = len(self.number) + 1
        heads = [head for layer in self.schedule.layers for head in layer.heads]
        size = len(self.number) + sum(len(_compared(head.selector)) for head in heads[:MOST])
        if max(size, len(heads)) > MOST:
            raise RaspLimitError(f"draw: more than {MOST} rows of values and of what is compared, which is too much")

    def _hidden(self) -> set[Node]:
        nodes = in_order([self.root])
        consumers: dict[Node, list[Node]] = {node: [] for node in nodes}
        for node in nodes:
            for part in node.parts:
                consumers[part].append(node)
        hidden: set[Node] = {node for node in nodes if isinstance(node, Constant) and node is not self.root}
        for node in nodes:
            consumer = consumers[node][0] if len(consumers[node]) == 1 else None
            # A name that a loop gives to one value after another is that of the last one.
            minor = node not in self.names or (consumer is not None and self.names[node] == self.names.get(consumer))
            if isinstance(node, Map) and isinstance(consumer, Map) and minor:
                hidden.add(node)
        return hidden

    def values(self, sop: SOp) -> list[Atom]:
        return self.run.value(sop)

    def title(self, node: Node) -> str:
        return printable(title(node, self.names))

    def label(self, node: Node) -> str:
        """tokens #1"""
        number = f" #{self.number[node]}" if node in self.number else ""
        return cut(self.title(node), TITLE) + number

    def whence(self, sop: SOp) -> str:
        """from #1, #3"""
        found: Counter[int] = Counter()
        waiting = list(sop.parts)
        seen: set[Node] = set()
        while waiting:
            part = waiting.pop()
            if part in self.number:
                found[self.number[part]] += 1
            elif part not in seen:
                seen.add(part)
                waiting += part.parts
        return f"from {', '.join(f'#{number}' for number in sorted(found))}" if found else ""


def _picture(flow: _Flow) -> Canvas:
    bands = []
    for number, layer in enumerate(flow.schedule.layers):
        blocks: list[Block] = []
        if layer.heads:
            blocks.append(Lines([_HeadBlock(flow, head, place, number) for place, head in enumerate(layer.heads, 1)]))
        rows = [sop for sop in layer.elementwise if sop in flow.number]
        if rows:
            blocks.append(_Table(flow, rows, number))
        if blocks:
            bands.append(Band(f"Layer {number}", _about(layer, number, rows), hue(number), blocks))
    name = flow.names.get(flow.root, "out")
    return stack(f"{name}({given_text(flow.given)})", str(flow.schedule), bands, arrow)


def _about(layer: Layer, number: int, rows: Sequence[SOp]) -> str:
    if number == 0:
        return "the input, position by position"
    heads = f"attention, {len(layer.heads)} head{'s' * (len(layer.heads) > 1)}"
    return f"{heads}, then feed-forward" if rows else heads


@dataclass(eq=False)
class _Table:
    """Rows of values: number, title, values, from which rows."""

    flow: _Flow
    rows: Sequence[SOp]
    layer: int

    def __post_init__(self) -> None:
        self.cells = cell_width(self.flow.values(sop) for sop in self.rows)
        self.titles = [cut(self.flow.title(sop), TITLE) for sop in self.rows]
        self.whence = [self.flow.whence(sop) for sop in self.rows]
        self.labels = max(text_width(one, SIZE) for one in self.titles)
        ends = zip(self.whence, self.rows, strict=True)
        self.tail = max(label_width(one) + (64 if sop is self.flow.root else 0) for one, sop in ends)
        self.head = 22 if self.layer else 0
        self.width = 2 * GAP + 34 + self.labels + 14 + self.cells * self.flow.length + 12 + self.tail
        self.height = self.head + len(self.rows) * (CELL + 5) - 5 + 2 * GAP

    def paint(self, canvas: Canvas, x: float, y: float) -> None:
        colour = hue(self.layer)
        canvas.add(Box(x, y, self.width, self.height, WHITE, tint(colour, 0.3), radius=7))
        if self.head:
            canvas.add(Text(x + GAP, y + GAP + 4, "feed-forward", SIZE, colour, mono=False, bold=True))
        y += GAP + self.head
        for sop, name, whence in zip(self.rows, self.titles, self.whence, strict=True):
            result = sop is self.flow.root
            middle = y + CELL / 2
            _badge(canvas, x + GAP, middle, self.flow.number[sop], colour)
            canvas.add(
                Text(x + GAP + 34, middle, name, SIZE, INK, bold=result, tooltip=expression(sop, self.flow.names))
            )
            cells = x + GAP + 34 + self.labels + 14
            paint_row(canvas, cells, y, self.cells, self.flow.values(sop), colour, strong=result)
            after = cells + self.cells * self.flow.length + 12
            if whence:
                canvas.add(Text(after, middle, whence, SMALL, FAINT))
            if result:
                _mark_result(canvas, after + (label_width(whence) + 10 if whence else 0), middle, colour)
            y += CELL + 5


def _badge(canvas: Canvas, x: float, middle: float, number: int, colour: str) -> None:
    canvas.add(
        Box(x, middle - 8, 27, 16, tint(colour, 0.14), radius=8),
        Text(x + 13.5, middle, f"#{number}", SMALL, colour, "middle", bold=True),
    )


def _mark_result(canvas: Canvas, x: float, middle: float, colour: str) -> None:
    canvas.add(
        Box(x, middle - 9, 54, 18, colour, radius=9),
        Text(x + 27, middle, "result", 11, WHITE, "middle", mono=False, bold=True),
    )


@dataclass(eq=False)
class _HeadBlock:
    """One head: keys above, queries on the left, the grid, then what is read through it."""

    flow: _Flow
    head: Head
    place: int
    layer: int
    keys: list[SOp] = field(init=False)
    queries: list[SOp] = field(init=False)

    def __post_init__(self) -> None:
        flow, head = self.flow, self.head
        compared = _compared(head.selector)
        self.keys = _without_repetition(flow, [node.keys for node in compared])
        self.queries = _without_repetition(flow, [node.queries for node in compared])
        self.name = cut(flow.title(head.selector), TITLE + 10)
        self.about = ""
        if head.selector in flow.names:
            self.about = cut(printable(expression(head.selector, flow.names)), TITLE + 10)
        read = [values for one in head.aggregates for values in (one, one.value)]
        self.cells = cell_width(flow.values(sop) for sop in (*self.keys, *read))
        self.query_cells = [cell_width([flow.values(sop)]) for sop in self.queries]
        self.key_labels = [f"other: {flow.label(sop)}" for sop in self.keys]
        self.query_labels = [f"me: {flow.label(sop)}" for sop in self.queries]
        self._measure()

    def _measure(self) -> None:
        flow = self.flow
        labels = [label_width(one) for one in self.key_labels]
        labels.append(max(map(label_width, self.query_labels)) + sum(self.query_cells) + 8)
        tails = [0.0]
        for one in self.head.aggregates:
            labels += [label_width(f"value: {flow.label(one.value)}"), 34 + text_width(self._result(one), SIZE)]
            tails.append(self._tail(one))
        self.gutter = max(labels) + 8
        self.threads = sum(map(sum, self.flow.run.value(self.head.selector)))
        self.strip = 30.0 if self.threads <= THREADS else 8.0
        self.top = 24.0 + (16 if self.about else 0)
        across = self.gutter + self.cells * flow.length + max(tails)
        heading = 62 + text_width(self.name, SIZE)
        self.width = 2 * GAP + max(across, heading, label_width(self.about))
        reads = len(self.head.aggregates) * (2 * CELL + self.strip + 12)
        self.height = 2 * GAP + self.top + len(self.keys) * (CELL + 3) + 3 + flow.length * CELL + reads

    def _result(self, one: Aggregate) -> str:
        """Without a name it needs none: the selector stands above, and the value too."""
        return cut(printable(self.flow.names.get(one, "aggregate")), TITLE)

    def _tail(self, one: Aggregate) -> float:
        """What stands on the right of a result: the default, and the mark of the result."""
        default = text_width(f"default {_atom(one.default)}", SMALL) + 24 if self._shows_default(one) else 0.0
        return default + (66 if one is self.flow.root else 0)

    def _shows_default(self, one: Aggregate) -> bool:
        """If it is used here, or was chosen: 0 is what stands for none."""
        used = not all(map(any, self.flow.run.value(one.selector)))
        return used or not (type(one.default) is int and one.default == 0)

    def paint(self, canvas: Canvas, x: float, y: float) -> None:
        colour = hue(self.layer)
        canvas.add(Box(x, y, self.width, self.height, WHITE, tint(colour, 0.3), radius=7))
        x, y = x + GAP, y + GAP
        canvas.add(
            Text(x, y + 6, f"head {self.place}", SIZE, colour, mono=False, bold=True),
            Text(x + 54, y + 6, self.name, SIZE, INK, bold=True),
        )
        if self.about:
            canvas.add(Text(x, y + 23, self.about, SMALL, FAINT))
        left, y = x + self.gutter, y + self.top
        for sop, label in zip(self.keys, self.key_labels, strict=True):
            canvas.add(Text(left - 8, y + CELL / 2, label, SMALL, FAINT, "end"))
            paint_row(canvas, left, y, self.cells, self.flow.values(sop), colour)
            y += CELL + 3
        y = self._paint_grid(canvas, left, y + 3, colour)
        for one in self.head.aggregates:
            y = self._paint_read(canvas, x, left, y + 12, one, colour)

    def _paint_grid(self, canvas: Canvas, left: float, y: float, colour: str) -> float:
        rows = self.flow.run.value(self.head.selector)
        at = left - 4 - sum(self.query_cells)
        for number, label in enumerate(self.query_labels):
            middle = y + CELL * self.flow.length / 2 + (number - (len(self.query_labels) - 1) / 2) * 15
            canvas.add(Text(at - 6, middle, label, SMALL, FAINT, "end"))
        for sop, width in zip(self.queries, self.query_cells, strict=True):
            paint_column(canvas, at, y, width, self.flow.values(sop), colour)
            at += width
        paint_grid(canvas, left, y, self.cells, rows, colour)
        return y + CELL * self.flow.length

    def _paint_read(self, canvas: Canvas, x: float, left: float, y: float, one: Aggregate, colour: str) -> float:
        """The value above, the result below, and lines from what is selected."""
        flow, rows = self.flow, self.flow.run.value(one.selector)
        canvas.add(Text(left - 8, y + CELL / 2, f"value: {flow.label(one.value)}", SMALL, FAINT, "end"))
        paint_row(canvas, left, y, self.cells, flow.values(one.value), colour)
        below = y + CELL + self.strip
        if self.threads <= THREADS:
            for i, row in enumerate(rows):
                many = sum(row)
                for j in (j for j, bit in enumerate(row) if bit):
                    ends = left + (j + 0.5) * self.cells, left + (i + 0.5) * self.cells
                    canvas.add(Stroke(ends[0], y + CELL, ends[1], below, tint(colour, 0.25 + 0.5 / many), 1.2))
        middle, result = below + CELL / 2, one is flow.root
        width = text_width(self._result(one), SIZE)
        _badge(canvas, left - 8 - width - 34, middle, flow.number[one], colour)
        tooltip = expression(one, flow.names)
        canvas.add(Text(left - 8, middle, self._result(one), SIZE, INK, "end", bold=True, tooltip=tooltip))
        for i, (row, atom) in enumerate(zip(rows, flow.values(one), strict=True)):
            paint_cell(canvas, left + i * self.cells, below, self.cells, atom, colour, strong=any(row))
        after = left + self.cells * flow.length + 10
        if self._shows_default(one):
            text = f"default {_atom(one.default)}"
            wide = text_width(text, SMALL) + 14
            canvas.add(Box(after, middle - 9, wide, 18, WHITE, FAINT, radius=4, dashed=True))
            canvas.add(Text(after + wide / 2, middle, text, SMALL, FAINT, "middle"))
            after += wide + 10
        if result:
            _mark_result(canvas, after, middle, colour)
        return below + CELL


def _compared(selector: Selector) -> list[Select]:
    """The comparisons that a selector is made of."""
    seen: dict[Node, None] = {}
    waiting: list[Node] = [selector]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen[node] = None
            waiting += reversed(node.parts) if isinstance(node, Combined) else ()
    return [node for node in seen if isinstance(node, Select)]


def _without_repetition(flow: _Flow, sops: Sequence[SOp]) -> list[SOp]:
    """Each once; constants by what they are."""
    return list({(flow.label(sop) if isinstance(sop, Constant) else id(sop)): sop for sop in sops}.values())


def _atom(atom: Atom) -> str:
    return f'"{cut(shown(atom), 12)}"' if isinstance(atom, str) else cut(shown(atom), 12)
