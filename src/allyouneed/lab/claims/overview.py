"""One picture of all claims: each chart with its name and outcome."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

from allyouneed.inspection.pictures import FAINT, INK
from allyouneed.lab.charts import AnyChart
from allyouneed.storage import write_atomic

HUES = {"confirmed": "#009e73", "refuted": "#d55e00"}  # other outcomes are grey
COLUMNS = 3


def draw_overview(path: Path, charts: Sequence[tuple[str, str, AnyChart]]) -> Path:
    """Write the (name, outcome, chart) of each claim as one PNG."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = math.ceil(len(charts) / COLUMNS)
    figure = Figure(figsize=(5 * COLUMNS, 3.5 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for number, (name, result, chart) in enumerate(charts, start=1):
        small = chart.figure()
        small.set_dpi(110)
        canvas = FigureCanvasAgg(small)
        canvas.draw()
        axes = figure.add_subplot(rows, COLUMNS, number)
        axes.imshow(np.asarray(canvas.buffer_rgba()), interpolation="lanczos", aspect="equal")
        axes.set_title(f"{name}: {result}", fontsize=14, color="white", backgroundcolor=HUES.get(result, FAINT), pad=8)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_color(FAINT)
        axes.tick_params(colors=INK)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=100, facecolor="white")
    write_atomic(path, data.getvalue())
    return path
