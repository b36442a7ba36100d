"""Charts in one style: curves with bands, bars with intervals, matrices of numbers. As SVG, PNG or text.

pyplot is not used: it needs global state. Colours are those of Okabe and Ito (2008), which are safe for colour-blind
readers; curves also differ by marker.
"""

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from allyouneed.inspection.pictures import FAINT, INK
from allyouneed.storage import write_atomic, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b", "#000000", "#bcbd22")
MARKS = "os^Dv*PXph"


@dataclass(frozen=True)
class Curve:
    """y over x, optionally with a band."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    style: Literal["line", "dashed", "points", "stars"] = "line"  # points with low and high get error bars
    colour: int | None = None  # index into COLOURS, for curves that belong together; default: one colour each


@dataclass(frozen=True)
class Chart:
    """Curves on one pair of axes."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False
    note: str = ""
    lines: dict[str, float] = field(default_factory=dict)  # named horizontal reference lines

    def figure(self) -> "Figure":
        """Draw the chart."""
        figure, axes = _new_figure(self.title, self.note)
        for number, curve in enumerate(self.curves):
            chosen = number if curve.colour is None else curve.colour
            mark = MARKS[(chosen + chosen // len(COLOURS)) % len(MARKS)]  # a reused colour gets another marker
            _draw_curve(axes, curve, COLOURS[chosen % len(COLOURS)], mark)
        for name, height in self.lines.items():
            axes.axhline(height, color=FAINT, linestyle=":", linewidth=1.2)
            axes.annotate(
                _plain(name), (1, height), xycoords=("axes fraction", "data"), ha="right", va="bottom", color=INK
            )
        axes.set_xlabel(_plain(self.x_label), color=INK)
        axes.set_ylabel(_plain(self.y_label), color=INK)
        if self.log_x:
            axes.set_xscale("log")
            _label_logarithms(axes.xaxis, axes.get_xlim())
            _name_sizes(axes, sorted({x for curve in self.curves for x in curve.x}))
        if self.log_y:
            axes.set_yscale("log")
            _label_logarithms(axes.yaxis, axes.get_ylim())
        names = [curve.name for curve in self.curves if curve.name]  # an unnamed curve belongs to another one
        if len(names) > 1 or (names and names[0] not in self.title):
            outside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1)}
            axes.legend(frameon=False, fontsize=9, labelcolor=INK, **(outside if len(names) > 4 else {}))
        return figure


@dataclass(frozen=True)
class Bar:
    """A bar with an interval."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Bars:
    """A bar chart of values with intervals."""

    title: str
    label: str
    bars: Sequence[Bar]
    note: str = ""

    def figure(self) -> "Figure":
        """Draw horizontal bars, which leave space for long names."""
        figure, axes = _new_figure(self.title, self.note, height=1.3 + 0.36 * len(self.bars))
        places = range(len(self.bars))[::-1]
        value = [bar.value for bar in self.bars]
        reach = [[bar.value - bar.low for bar in self.bars], [bar.high - bar.value for bar in self.bars]]
        axes.barh(places, value, xerr=reach, color=COLOURS[0], height=0.62, ecolor=INK, capsize=3)
        axes.set_yticks(places, [_plain(bar.name) for bar in self.bars])
        axes.set_xlabel(_plain(self.label), color=INK)
        return figure


@dataclass(frozen=True)
class Matrix:
    """A matrix of numbers, coloured around zero; significant values are bold."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    sure: Sequence[Sequence[bool]]
    note: str = ""
    digits: int = 2
    reach: float | None = None  # absolute value at which colours saturate; default: the largest one

    def figure(self) -> "Figure":
        """Draw the matrix. White is zero, blue is better, orange is worse."""
        from matplotlib.colors import LinearSegmentedColormap

        width, height = 3.2 + 1.25 * len(self.columns), 1.6 + 0.42 * len(self.rows)
        figure, axes = _new_figure(self.title, self.note, width=width, height=height)
        colours = LinearSegmentedColormap.from_list("effects", ["#d55e00", "#ffffff", "#0072b2"])
        finite = [abs(value) for row in self.values for value in row if math.isfinite(value)]
        reach = self.reach or max(finite, default=0.0) or 1.0
        axes.imshow(self.values, cmap=colours, vmin=-reach, vmax=reach, aspect="auto")
        axes.set_xticks(range(len(self.columns)), [_plain(name) for name in self.columns], color=INK)
        axes.set_yticks(range(len(self.rows)), [_plain(name) for name in self.rows], color=INK)
        axes.tick_params(length=0)
        axes.grid(False)
        for i, row in enumerate(self.values):
            for j, value in enumerate(row):
                weight, text = ("bold" if self.sure[i][j] else "normal"), f"{value:+.{self.digits}f}"
                text = text if math.isfinite(value) else "–"
                colour = "white" if abs(value) > 0.6 * reach else INK
                axes.text(j, i, text, ha="center", va="center", fontweight=weight, color=colour)
        return figure


@dataclass(frozen=True)
class Dots:
    """A dot plot: several values for each row."""

    title: str
    label: str
    rows: Sequence[str]
    values: dict[str, Sequence[float]]  # series name -> one value per row
    note: str = ""

    def figure(self) -> "Figure":
        """Draw horizontal rows; the series of a row are offset a little vertically."""
        figure, axes = _new_figure(self.title, self.note, height=1.4 + 0.3 * len(self.rows))
        for number, (name, values) in enumerate(self.values.items()):
            colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
            places = [-row - 0.18 * (number - (len(self.values) - 1) / 2) for row in range(len(self.rows))]
            axes.plot(values, places, mark, markersize=6, color=colour, label=_legend(name))
        axes.set_yticks([-row for row in range(len(self.rows))], [_plain(name) for name in self.rows])
        axes.set_xlabel(_plain(self.label), color=INK)
        axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="upper left", bbox_to_anchor=(1.01, 1))
        return figure


AnyChart = Chart | Bars | Matrix | Dots


def svg(chart: AnyChart) -> str:
    """Return the chart as SVG text; the same chart always gives the same text."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "allyouneed", "svg.fonttype": "path"}):
        chart.figure().savefig(text, format="svg", metadata={"Date": None}, facecolor="white")
    return text.getvalue()


def save_chart(chart: AnyChart, path: Path) -> Path:
    """Write a .svg or .png file."""
    if path.suffix == ".svg":
        data = svg(chart).encode()
    else:
        bytes_ = io.BytesIO()
        chart.figure().savefig(bytes_, format="png", dpi=150, facecolor="white")
        data = bytes_.getvalue()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, data)
    return path


def text_chart(chart: Chart, width: int = 72, height: int = 16) -> str:
    """Draw curves as text for a terminal, with one letter per curve and a legend."""
    points = [
        (_at(x, chart.log_x), _at(y, chart.log_y), number)
        for number, curve in enumerate(chart.curves)
        for x, y in zip(curve.x, curve.y, strict=True)
    ]
    points = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    if not points:
        return f"{chart.title}\n(nothing to draw)"
    left, right = min(point[0] for point in points), max(point[0] for point in points)
    low, high = min(point[1] for point in points), max(point[1] for point in points)
    grid = [[" "] * width for _ in range(height)]
    for x, y, number in points:
        column = round((x - left) / ((right - left) or 1) * (width - 1))
        row = round((high - y) / ((high - low) or 1) * (height - 1))
        cell = grid[row][column]
        grid[row][column] = _letter(number) if cell in (" ", _letter(number)) else "*"
    edges = {0: _number(high, chart.log_y), height - 1: _number(low, chart.log_y)}
    lines = [f"{edges.get(i, ''):>9} |{''.join(row)}" for i, row in enumerate(grid)]
    ends = _number(left, chart.log_x), _number(right, chart.log_x)
    axis = f"{'':9} +{'-' * width}\n{'':11}{ends[0]}{ends[1]:>{max(1, width - len(ends[0]))}}"
    names = ", ".join(f"{_letter(number)} {curve.name}" for number, curve in enumerate(chart.curves))
    return "\n".join([f"{chart.title}: {chart.y_label} over {chart.x_label}", *lines, axis, f"{'':11}{names}"])


def _plain(text: str) -> str:
    """Escape dollar signs: matplotlib parses text between two of them as a formula."""
    return text.replace("$", r"\$")


def _legend(name: str) -> str:
    """Escape a legend entry; matplotlib hides names that start with an underscore."""
    return f" {_plain(name)}" if name.startswith("_") else _plain(name)


def _new_figure(title: str, note: str, width: float = 7.2, height: float = 4.2) -> "tuple[Figure, Axes]":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    # Over the whole figure: next to long names the axes start far to the right, and their title would be cut off.
    figure.suptitle(textwrap.fill(_plain(title), round(11 * width)), x=0.01, ha="left", fontsize=12, color=INK)
    axes.tick_params(colors=INK, labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.grid(color="#e6e9ef", linewidth=0.7)
    axes.set_axisbelow(True)
    if note:
        figure.supxlabel(_plain(note), fontsize=8.5, color=INK, x=0.01, ha="left", wrap=True)
    return figure, axes


def _name_sizes(axes: "Axes", sizes: Sequence[float]) -> None:
    """Label a few integer sizes on a logarithmic axis directly: 1,024 is clearer than a nearby power of ten."""
    if 2 <= len(sizes) <= 10 and all(size == round(size) for size in sizes):
        axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])
        axes.minorticks_off()


def _mark_powers(axis: Any) -> None:
    """Place labels without overlap: at powers of ten, and at 2 and 5 times them on short axes."""
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    narrow = high < 100 * low
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
    axis.set_major_formatter(LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(math.inf, math.inf)))
    axis.set_minor_formatter(NullFormatter())


def _draw_curve(axes: "Axes", curve: Curve, colour: str, mark: str) -> None:
    few = len(curve.x) <= 40
    line = {"line": "-", "dashed": "--", "points": " ", "stars": " "}[curve.style]
    shown = mark if curve.style == "points" or (few and curve.style == "line") else ""
    shown, size = ("*", 11.0) if curve.style == "stars" else (shown, 6.0 if curve.style == "points" else 4.5)
    style: dict[str, Any] = {"linestyle": line, "marker": shown, "markersize": size}
    axes.plot(curve.x, curve.y, **style, linewidth=1.7, color=colour, label=_legend(curve.name))
    if curve.low and curve.style == "points":
        reach = [[y - low for y, low in zip(curve.y, curve.low, strict=True)]]
        reach += [[high - y for y, high in zip(curve.y, curve.high, strict=True)]]
        axes.errorbar(curve.x, curve.y, yerr=reach, fmt="none", ecolor=colour, elinewidth=1.2, capsize=3)
    elif curve.low:
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)


def _label_logarithms(axis: Any, ends: tuple[float, float]) -> None:
    """Label an axis that spans few powers of ten with plain numbers, at 1, 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    decades = math.log10(ends[1] / ends[0])
    if decades > 4 or ends[1] >= 1e6:
        _mark_powers(axis)
        return
    # Without numticks the locator drops labels, possibly all but one.
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.2 else (1,), numticks=20))
    axis.set_minor_locator(LogLocator(subs=range(1, 10), numticks=40) if decades < 2.2 else NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))


def _letter(number: int) -> str:
    return chr(ord("a") + number % 26)


def _at(value: float, log: bool) -> float:
    if not log:
        return value
    return math.log10(value) if value > 0 else math.nan


def _number(value: float, log: bool) -> str:
    return f"{10**value if log else value:.3g}"
