"""The blocks of a program's drawing: the rows of a feed-forward layer, and a head with its selector."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from allyouneed.rasp.atoms import Atom
from allyouneed.rasp.drawing.blocks import (
    CELL,
    GAP,
    SIZE,
    SMALL,
    cell_width,
    label_width,
    paint_cell,
    paint_column,
    paint_grid,
    paint_row,
    shown,
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
from allyouneed.rasp.drawing.dataflow import TITLE, Dataflow, comparisons
from allyouneed.rasp.graph import Aggregate, Constant, SOp
from allyouneed.rasp.labels import cut, expression
from allyouneed.rasp.layers import ScheduledHead

CONNECTIONS: Final = 160  # lines from values to results; if there were more, none is drawn


@dataclass(eq=False)
class RowTable:
    """Rows of values: number, title, values, source rows."""

    flow: Dataflow
    rows: Sequence[SOp]
    layer: int

    def __post_init__(self) -> None:
        self.cells = cell_width(self.flow.values(sop) for sop in self.rows)
        self.titles = [cut(self.flow.title(sop), TITLE) for sop in self.rows]
        self.sources = [self.flow.sources(sop) for sop in self.rows]
        self.labels = max(text_width(one, SIZE) for one in self.titles)
        ends = zip(self.sources, self.rows, strict=True)
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
        for sop, name, source in zip(self.rows, self.titles, self.sources, strict=True):
            result = sop is self.flow.root
            middle = y + CELL / 2
            _badge(canvas, x + GAP, middle, self.flow.number[sop], colour)
            canvas.add(
                Text(x + GAP + 34, middle, name, SIZE, INK, bold=result, tooltip=expression(sop, self.flow.names))
            )
            cells = x + GAP + 34 + self.labels + 14
            paint_row(canvas, cells, y, self.cells, self.flow.values(sop), colour, strong=result)
            after = cells + self.cells * self.flow.length + 12
            if source:
                canvas.add(Text(after, middle, source, SMALL, FAINT))
            if result:
                _mark_result(canvas, after + (label_width(source) + 10 if source else 0), middle, colour)
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
class HeadBlock:
    """One head: keys above, queries on the left, the grid, then the values read through it."""

    flow: Dataflow
    head: ScheduledHead
    place: int
    layer: int
    keys: list[SOp] = field(init=False)
    queries: list[SOp] = field(init=False)

    def __post_init__(self) -> None:
        flow, head = self.flow, self.head
        compared = comparisons(head.selector)
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
        self.connections = sum(map(sum, self.flow.run.rows(self.head.selector)))
        self.strip = 30.0 if self.connections <= CONNECTIONS else 8.0
        self.top = 24.0 + (16 if self.about else 0)
        across = self.gutter + self.cells * flow.length + max(tails)
        heading = 62 + text_width(self.name, SIZE)
        self.width = 2 * GAP + max(across, heading, label_width(self.about))
        reads = len(self.head.aggregates) * (2 * CELL + self.strip + 12)
        self.height = 2 * GAP + self.top + len(self.keys) * (CELL + 3) + 3 + flow.length * CELL + reads

    def _result(self, one: Aggregate) -> str:
        """Return the label of a result. Unnamed ones need none: selector and value are drawn above."""
        return cut(printable(self.flow.names.get(one, "aggregate")), TITLE)

    def _tail(self, one: Aggregate) -> float:
        """Return the width of what follows a result on the right: the default, and the result mark."""
        default = text_width(f"default {_atom(one.default)}", SMALL) + 24 if self._shows_default(one) else 0.0
        return default + (66 if one is self.flow.root else 0)

    def _shows_default(self, one: Aggregate) -> bool:
        """Return True if the default is used on this input, or differs from 0."""
        used = not all(map(any, self.flow.run.rows(one.selector)))
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
        rows = self.flow.run.rows(self.head.selector)
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
        """Paint the value above, the result below, and lines from the selected positions."""
        flow, rows = self.flow, self.flow.run.rows(one.selector)
        canvas.add(Text(left - 8, y + CELL / 2, f"value: {flow.label(one.value)}", SMALL, FAINT, "end"))
        paint_row(canvas, left, y, self.cells, flow.values(one.value), colour)
        below = y + CELL + self.strip
        if self.connections <= CONNECTIONS:
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


def _without_repetition(flow: Dataflow, sops: Sequence[SOp]) -> list[SOp]:
    """Return each s-op once; constants of equal value count as one."""
    return list({(flow.label(sop) if isinstance(sop, Constant) else id(sop)): sop for sop in sops}.values())


def _atom(atom: Atom) -> str:
    return f'"{cut(shown(atom), 12)}"' if isinstance(atom, str) else cut(shown(atom), 12)
