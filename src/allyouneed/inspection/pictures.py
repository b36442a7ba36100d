"""Pictures of attention weights, in one hue from light to dark, which is safe for colour-blind readers."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from allyouneed.storage import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, FAINT, ACCENT = "#1b2a41", "#8d99ae", "#c44900"


@dataclass(frozen=True)
class Group:
    """Adjacent columns that belong together, such as the letters of a word."""

    name: str
    columns: int
    marked: bool = False


def draw_attention(
    path: Path,
    weights_TS: Tensor,
    source: Sequence[str],
    target: Sequence[str],
    *,
    title: str,
    note: str = "",
    groups: Sequence[Group] = (),
    marked: Sequence[int] = (),
) -> Path:
    """Write attention weights as a PNG: a row per source token, a column per target token; darker means more.

    `groups` name runs of columns. `marked` source rows and marked groups are drawn in another colour.
    """
    # matplotlib's object-oriented API instead of pyplot: no display, no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    T, S = weights_TS.shape
    figure = Figure(figsize=(2.6 + 0.3 * T, 2.4 + 0.34 * S), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(weights_TS.T.float().numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(T), target, fontsize=11, color=INK)
    axes.set_yticks(range(S), source, fontsize=11, color=INK)
    axes.tick_params(length=0)
    for row in marked:
        axes.get_yticklabels()[row].set(color=ACCENT, fontweight="bold")
    axes.set_xticks([place - 0.5 for place in range(1, T)], minor=True)
    axes.set_yticks([place - 0.5 for place in range(1, S)], minor=True)
    axes.grid(which="minor", color="#e6e9ef", linewidth=0.6)
    axes.tick_params(which="minor", length=0)
    axes.spines[:].set_color(FAINT)
    _draw_groups(axes, groups)
    axes.set_title(title, fontsize=13, color=INK, loc="left", pad=10)
    lines = "\n".join(textwrap.wrap(note, int(4 * T + 20)))
    axes.set_xlabel(lines, fontsize=10, color=INK, loc="left", labelpad=36 if groups else 8)
    bar = figure.colorbar(image, ax=axes, fraction=0.025, pad=0.015)
    bar.outline.set_edgecolor(FAINT)
    bar.set_label("attention weight", fontsize=9, color=INK)
    bar.ax.tick_params(labelsize=8, length=2, colors=INK)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, facecolor="white")
    return path


def _draw_groups(axes: "Axes", groups: Sequence[Group]) -> None:
    """Draw brackets with the names of the groups below the letters, and lines between the groups."""
    from matplotlib.transforms import ScaledTranslation

    # x in columns, y in inches below the picture: the same distance at any figure size.
    inches = axes.get_figure(root=True).dpi_scale_trans  # type: ignore[union-attr]
    line, name = (axes.get_xaxis_transform() + ScaledTranslation(0, y, inches) for y in (-0.36, -0.41))
    start = 0
    for group in groups:
        end, colour = start + group.columns, ACCENT if group.marked else INK
        axes.plot([start - 0.32, end - 0.68], [0, 0], transform=line, clip_on=False, color=colour, linewidth=1.6)
        style: dict[str, Any] = {"fontsize": 11, "color": colour, "fontweight": "bold" if group.marked else "normal"}
        axes.text((start + end - 1) / 2, 0, group.name, transform=name, ha="center", va="top", **style)
        axes.axvline(end - 0.5, color=FAINT, linewidth=1.2)
        start = end
