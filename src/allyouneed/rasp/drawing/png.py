"""A drawing as PNG, by matplotlib: the shapes of its SVG at twice their size, in the fonts that matplotlib brings."""

import warnings
from pathlib import Path
from typing import Any, Final

from allyouneed.rasp.drawing.canvas import WHITE, Box, Canvas, Stroke, Text

SCALE: Final = 2.0
LARGEST: Final = 16_000  # pixels a side
INCH: Final = 96.0  # pixels, as in SVG


def save_png(canvas: Canvas, path: str | Path) -> None:
    """Writes the picture."""
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
        warnings.simplefilter("ignore", UserWarning)  # its fonts lack some scripts; boxes stand for their letters
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
            parse_math=False,  # a $ is a $
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
