"""Drawing attention maps with matplotlib, and the small pictures that notebooks show."""

import base64
import html
import io
import unicodedata
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from allyouneed.inspection.pictures import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LABELS = 48  # labels along an axis; a longer axis labels every second, third, ... token
LABEL_LENGTH = 14  # characters
TITLE_LENGTH = 90  # characters


def paint(axes: "Axes", weights_TS: Tensor) -> None:
    """Draw a map. As on the page, colours follow the square root of the weight, so that small weights stay visible."""
    axes.imshow(weights_TS.float().clamp(0, 1).sqrt().numpy(), cmap="OrRd", vmin=0, vmax=1, aspect="auto")
    axes.spines[:].set_color(FAINT)


def paint_labelled(axes: "Axes", weights_TS: Tensor, rows: Sequence[str] | None, columns: Sequence[str] | None) -> None:
    """Draw a map with the tokens of its rows and columns, or with numbers where they are None."""
    paint(axes, weights_TS)
    T, S = weights_TS.shape
    _set_labels(axes.set_yticks, rows, T)
    _set_labels(axes.set_xticks, columns, S, rotation=90)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)


def _set_labels(set_ticks: Any, names: Sequence[str] | None, length: int, **more: Any) -> None:
    every = -(-length // MAX_LABELS)
    places = list(range(0, length, every))
    texts = [str(place + 1) if names is None else shorten(names[place], LABEL_LENGTH) for place in places]
    set_ticks(places, texts, fontsize=8, color=INK, parse_math=False, **more)


def png_bytes(figure: "Figure") -> bytes:
    """Return a figure as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    data = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # characters missing from the font are drawn as boxes
        figure.savefig(data, format="png", facecolor="white")
    return data.getvalue()


def shorten(text: str, length: int) -> str:
    """Return a text as one line of at most `length` characters, with invisible characters spelled out."""
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥"}
    if text in signs:
        return signs[text]
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    shown = "".join(
        char if unicodedata.category(char) not in hidden else signs.get(char) or f"U+{ord(char):04X}"
        for char in text[: length + 1]
    )
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"


def weights_html(weights_HTS: Tensor, rows: Sequence[str] | None, columns: Sequence[str] | None, title: str) -> str:
    """Return the mean over the heads as an inline image."""
    from matplotlib.figure import Figure

    weights_TS = weights_HTS.float().mean(dim=0)
    T, S = weights_TS.shape
    figure = Figure(figsize=(min(9.0, 1.6 + 0.26 * S), min(9.0, 1.4 + 0.22 * T)), dpi=90, layout="constrained")
    paint_labelled(figure.add_subplot(), weights_TS, rows, columns)
    encoded = base64.b64encode(png_bytes(figure)).decode()
    return f'<img alt="{html.escape(shorten(title, TITLE_LENGTH))}" src="data:image/png;base64,{encoded}">'
