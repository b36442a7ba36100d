"""What `allyouneed inspect` writes and notebooks show: a look into a model as one HTML file, a PNG, or a small picture.

The HTML file is the server's page without a server: the same modules (package data of `serve/page`, put one after
another), the same style, and the answer as data that no parser of markup sees. Its policy names the hashes of that one
script and that one style, so nothing else in the file can run or be fetched, whatever the text and the tokens hold.
"""

import base64
import hashlib
import html
import io
import json
import re
import unicodedata
import warnings
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from allyouneed.folder import Bundle
from allyouneed.inspection.inspect import Heads, Look, as_json
from allyouneed.inspection.pictures import FAINT, INK
from allyouneed.storage import write_atomic, writing
from allyouneed.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODULES = ("dom.js", "heatmap.js", "maps.js", "tokens.js", "inspect.js")  # in the order in which they need each other
ORDER = ("cross", "decoder", "encoder", "other")
PANELS = 48  # small maps of a picture
LABELS = 48  # tokens that are written along an axis; of more, every second, third, ..
LONG = 14  # characters of a label
TITLE = 90


def write_inspection(folder: Path, bundle: Bundle, text: str, found: Look) -> tuple[Path, Path]:
    """Writes index.html and maps.png into a folder."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    page, picture = folder / "index.html", folder / "maps.png"
    image = png(found, text)
    write_atomic(page, inspection_html(bundle, text, found).encode("utf-8", "backslashreplace"))
    write_atomic(picture, image)
    return page, picture


def inspection_html(bundle: Bundle, text: str, found: Look) -> str:
    """The whole page."""
    model = bundle.model
    data = {
        "title": text,
        "about": str(bundle.recipe.get("about", "")),
        "architecture": model.config.type,
        "parameters": model.parameter_count(),
        "path": bundle.path.name if bundle.path.name != "model" else bundle.path.parent.name,
        "look": as_json(found),
    }
    # Within a script element only "<" could end it, or begin something else.
    quoted = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    script, style = _script(), _asset("style.css")
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(cut(text, TITLE))}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<header><p class="brand">Is attention <em>all you need?</em></p></header>\n<main></main>\n'
        f'<p class="note">allyouneed {__version__}</p>\n'
        f'<script type="application/json" id="data">{quoted}</script>\n<script type="module">{script}</script>\n'
        "</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return files("allyouneed").joinpath("serve", "page", name).read_text(encoding="utf-8")


def _script() -> str:
    """The modules as one: what they import stands above them."""
    whole = "\n".join(_asset(name) for name in MODULES)
    return re.sub(r"^export ", "", re.sub(r"^import .*;\n", "", whole, flags=re.M), flags=re.M)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


# --- pictures --------------------------------------------------------------------------------------------------------


def png(found: Look, text: str) -> bytes:
    """The map that says most, with its tokens, and all heads beside it."""
    from matplotlib.figure import Figure

    panels = [(one, head) for one in _ordered(found) for head in range(len(one.heads))][:PANELS]
    main = main_map(found)
    rows, columns = (1, 1) if main is None else main.weights_HTS.shape[1:]
    width, height = min(14.0, 3.0 + 0.32 * columns), min(14.0, 2.6 + 0.28 * rows)
    across = 1 if len(panels) <= 4 else 4 if len(panels) <= 16 else 6
    deep = -(-len(panels) // across)
    beside = 0.0 if len(panels) < 2 else 1.15 * across
    height = max(height, 1.2 + 1.25 * deep)
    figure = Figure(figsize=(max(6.0, width + beside), height), dpi=130, layout="constrained")
    left: Any = figure
    right: Any = None
    if beside:
        left, right = figure.subfigures(1, 2, width_ratios=[max(width, 6.0 - beside), beside], squeeze=False)[0]
    title = f"{cut(text, TITLE // 2)}  →  {cut(found.answer, TITLE // 2)}"
    if main is None:
        figure.text(0.5, 0.5, found.note or "no map", ha="center", color=INK, parse_math=False, wrap=True)
    else:
        _main_picture(left.add_subplot(), main, found)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=INK, parse_math=False)
    if right is not None:
        for place, (one, head) in enumerate(panels, start=1):
            axes = right.add_subplot(deep, across, place)
            _paint(axes, one.weights_HTS[head])
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"{one.part} {one.layer}.{one.heads[head]}", fontsize=7, color=INK, parse_math=False)
    return _bytes(figure)


def main_map(found: Look) -> Heads | None:
    """The last layer that looks at the source, else the last one of all."""
    for part in ORDER:
        of_part = [one for one in found.maps if one.part == part]
        if of_part:
            return of_part[-1]
    return None


def _ordered(found: Look) -> list[Heads]:
    return sorted(found.maps, key=lambda one: (ORDER.index(one.part), one.layer))


def _main_picture(axes: "Axes", one: Heads, found: Look) -> None:
    weights_TS = one.weights_HTS.mean(dim=0)
    _paint(axes, weights_TS)
    T, S = weights_TS.shape
    _label(axes.set_yticks, found.labels(one.rows), T)
    _label(axes.set_xticks, found.labels(one.columns), S, rotation=90)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    heads = f", mean of {len(one.heads)} heads" if len(one.heads) > 1 else ""
    axes.set_xlabel(f"{one.name}, layer {one.layer}{heads}: a row reads", fontsize=8, color=INK, parse_math=False)


def _paint(axes: "Axes", weights_TS: Tensor) -> None:
    # As on the page: the root keeps small shares visible.
    axes.imshow(weights_TS.float().clamp(0, 1).sqrt().numpy(), cmap="OrRd", vmin=0, vmax=1, aspect="auto")
    axes.spines[:].set_color(FAINT)


def _label(set_ticks: Any, names: Sequence[str] | None, length: int, **more: Any) -> None:
    every = -(-length // LABELS)
    places = list(range(0, length, every))
    texts = [str(place + 1) if names is None else cut(names[place], LONG) for place in places]
    set_ticks(places, texts, fontsize=8, color=INK, parse_math=False, **more)


def _bytes(figure: "Figure") -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    data = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a character that the font does not have is a box
        figure.savefig(data, format="png", facecolor="white")
    return data.getvalue()


def cut(text: str, length: int) -> str:
    """A text on one line, what is invisible written out, and no longer than that."""
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥"}
    if text in signs:
        return signs[text]
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    shown = "".join(
        char if unicodedata.category(char) not in hidden else signs.get(char) or f"U+{ord(char):04X}"
        for char in text[: length + 1]
    )
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"


# --- notebooks -------------------------------------------------------------------------------------------------------


def small_html(found: Look) -> str:
    """A look in a notebook: a line of text and one picture. No script, nothing fetched."""
    main = main_map(found)
    line = f"<p>→ {html.escape(cut(found.answer, 500))}</p>" if found.answer else ""
    note = f"<p><small>{html.escape(found.note)}</small></p>" if found.note else ""
    if main is None:
        return f"<div>{line}{note}</div>"
    rows, columns = found.labels(main.rows), found.labels(main.columns)
    return f"<div>{line}{weights_html(main.weights_HTS, rows, columns, main.name)}{note}</div>"


def weights_html(weights_HTS: Tensor, rows: Sequence[str] | None, columns: Sequence[str] | None, title: str) -> str:
    """The mean of some heads as a picture within the page."""
    from matplotlib.figure import Figure

    weights_TS = weights_HTS.float().mean(dim=0)
    T, S = weights_TS.shape
    figure = Figure(figsize=(min(9.0, 1.6 + 0.26 * S), min(9.0, 1.4 + 0.22 * T)), dpi=90, layout="constrained")
    axes = figure.add_subplot()
    _paint(axes, weights_TS)
    _label(axes.set_yticks, rows, T)
    _label(axes.set_xticks, columns, S, rotation=90)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    encoded = base64.b64encode(_bytes(figure)).decode()
    return f'<img alt="{html.escape(cut(title, TITLE))}" src="data:image/png;base64,{encoded}">'
