"""Draws how an s-op is computed on an input: layers from top to bottom, heads side by side.

    layer 0      the input, the indices, and everything computed from them position by position
    layer n      a box for every head: keys ("other") above, queries ("me") on the left, the grid of the selector, the
                 values read through it, and the result; then a table of the feed-forward's results

Layers and heads are those of `layers.py`. Every row has a number, which other rows use to name their inputs.

The drawing is SVG text written here; no other program is needed. Paper: Weiss, Goldberg and Yahav 2021, figure 1.
"""

from collections.abc import Mapping, Sequence

from allyouneed.rasp.drawing.blocks import Drawable, LayerBox, Lines, arrow, stack
from allyouneed.rasp.drawing.canvas import Canvas, hue
from allyouneed.rasp.drawing.dataflow import Dataflow
from allyouneed.rasp.drawing.program_blocks import HeadBlock, RowTable
from allyouneed.rasp.formatting import given_text
from allyouneed.rasp.graph import Input, Node, Selector, SOp
from allyouneed.rasp.layers import ScheduledLayer


def draw(node: SOp | Selector, given: Input, names: Mapping[Node, str] | None = None) -> Canvas:
    """Draw an s-op or selector on an input. `names`: the names of its nodes."""
    flow, bands = Dataflow(node, given, names or {}), []
    for number, layer in enumerate(flow.schedule.layers):
        blocks: list[Drawable] = []
        if layer.heads:
            blocks.append(Lines([HeadBlock(flow, head, place, number) for place, head in enumerate(layer.heads, 1)]))
        rows = [sop for sop in layer.elementwise if sop in flow.number]
        if rows:
            blocks.append(RowTable(flow, rows, number))
        if blocks:
            bands.append(LayerBox(f"Layer {number}", _about(layer, number, rows), hue(number), blocks))
    name = flow.names.get(flow.root, "out")
    return stack(f"{name}({given_text(flow.given)})", str(flow.schedule), bands, arrow)


def _about(layer: ScheduledLayer, number: int, rows: Sequence[SOp]) -> str:
    if number == 0:
        return "the input, position by position"
    heads = f"attention, {len(layer.heads)} head{'s' * (len(layer.heads) > 1)}"
    return f"{heads}, then feed-forward" if rows else heads
