"""Drawings as PNG, by matplotlib: the SVG's shapes at twice the size, in matplotlib's own fonts."""

import warnings
from pathlib import Path
from typing import Any, Final

from allyouneed.rasp.drawing.canvas import WHITE, Box, Canvas, Stroke, Text

SCALE: Final = 2.0
LARGEST: Final = 16_000  # pixels per side
INCH: Final = 96.0  # pixels per inch, as in SVG


def save_png(canvas: Canvas, path: str | Path) -> None:
    """Write a drawing as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scale = min(SCALE, LARGEST / max(canvas.width, canvas.height))
    figure = Figure(figsize=(canvas.width / INCH, canvas.height / INCH), dpi=INCH * scale, facecolor=WHITE)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, canvas.width)
    axes.set_ylim(canvas.height, 0)
    for number, shape in enumerate(canvas.shapes):
        _add(axes, shape, number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # its fonts lack some scripts and show boxes instead
        figure.savefig(path, format="png", metadata={"Software": None})


def _add(axes: Any, shape: Box | Stroke | Text, order: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import FancyBboxPatch, Rectangle

    points = 72 / INCH
    if isinstance(shape, Stroke):
        ends = (shape.x1, shape.x2), (shape.y1, shape.y2)
        axes.add_line(Line2D(*ends, color=shape.colour, linewidth=shape.width * points, zorder=order))
    elif isinstance(shape, Text):
        axes.text(
            shape.x,
            shape.y,
            shape.text,
            fontsize=shape.size * points,
            color=shape.colour,
            family="DejaVu Sans Mono" if shape.mono else "DejaVu Sans",
            weight="bold" if shape.bold else "normal",
            ha={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
            va="center_baseline",
            parse_math=False,  # $ is literal
            zorder=order,
        )
    else:
        place = (shape.x, shape.y), shape.width, shape.height
        style: dict[str, Any] = {
            "facecolor": shape.fill,
            "edgecolor": shape.stroke,
            "linewidth": points,
            "linestyle": (0, (3, 2)) if shape.dashed else "-",
            "zorder": order,
        }
        if shape.radius:
            rounded = f"round,pad=0,rounding_size={min(shape.radius, shape.height / 2)}"
            axes.add_patch(FancyBboxPatch(*place, boxstyle=rounded, **style))
        else:
            axes.add_patch(Rectangle(*place, **style))
