"""The files that `allyouneed inspect` writes: an inspection as one HTML page and as one PNG.

The HTML file is the server's page without a server: the same modules (package data of `serve/page`, concatenated), the
same style, and the inspection as JSON that the HTML parser does not interpret. Its content security policy names the
hashes of that script and that style. Nothing else in the file can run or be fetched, whatever the tokens contain.
"""

import base64
import hashlib
import html
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allyouneed.folder import OUTLINE, Bundle
from allyouneed.inspection.drawing import TITLE_LENGTH, paint, paint_labelled, png_bytes, shorten
from allyouneed.inspection.pictures import INK
from allyouneed.inspection.result import PART_ORDER, Inspection, LayerMaps, as_json
from allyouneed.storage import write_atomic, writing
from allyouneed.version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MODULES = ("dom.js", "heatmap.js", "maps.js", "tokens.js", "inspect.js")  # each after the modules that it imports
PAGE, PICTURE = "index.html", "maps.png"
MAX_PANELS = 48  # small maps in a picture


def write_inspection(folder: Path, bundle: Bundle, text: str, found: Inspection, pieces: int = 1) -> tuple[Path, Path]:
    """Write index.html and maps.png into a folder, and return their paths.

    `pieces`: the number of pieces in which the text would be translated, which the page states.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    page, picture = folder / PAGE, folder / PICTURE
    write_atomic(picture, png(found, text))  # first: a page without its picture is not from here
    write_atomic(page, inspection_html(bundle, text, found, pieces).encode("utf-8", "backslashreplace"))
    return page, picture


def inspection_html(bundle: Bundle, text: str, found: Inspection, pieces: int = 1) -> str:
    """Return the whole page."""
    model = bundle.model
    data = {
        "title": text,
        "about": str(bundle.recipe.get("about", "")),
        "architecture": model.config.type,
        "parameters": model.parameter_count(),
        "path": bundle.path.parent.name if bundle.path.name in ("model", OUTLINE) else bundle.path.name,
        "look": {**as_json(found), "pieces": pieces},
    }
    # Inside a script element only "<" could end it or start another element.
    quoted = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    script, style = _script(), _asset("style.css")
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(shorten(text, TITLE_LENGTH))}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<header><p class="brand">Is attention <em>all you need?</em></p></header>\n<main></main>\n'
        f'<p class="note">allyouneed {__version__}</p>\n'
        f'<script type="application/json" id="data">{quoted}</script>\n<script type="module">{script}</script>\n'
        "</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return files("allyouneed").joinpath("serve", "page", name).read_text(encoding="utf-8")


def _script() -> str:
    """Return all modules as one, without their imports and exports."""
    whole = "\n".join(_asset(name) for name in MODULES)
    return re.sub(r"^export ", "", re.sub(r"^import .*;\n", "", whole, flags=re.M), flags=re.M)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def png(found: Inspection, text: str) -> bytes:
    """Return a PNG of the main map with its tokens, and small maps of all heads beside it."""
    from matplotlib.figure import Figure

    ordered = sorted(found.maps, key=lambda one: (PART_ORDER.index(one.part), one.layer))
    panels = [(one, head) for one in ordered for head in range(len(one.heads))][:MAX_PANELS]
    main = found.main_map()
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
    title = f"{shorten(text, TITLE_LENGTH // 2)}  →  {shorten(found.answer, TITLE_LENGTH // 2)}"
    if main is None:
        figure.text(0.5, 0.5, found.note or "no map", ha="center", color=INK, parse_math=False, wrap=True)
    else:
        _draw_main_map(left.add_subplot(), main, found)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=INK, parse_math=False)
    if right is not None:
        for place, (one, head) in enumerate(panels, start=1):
            axes = right.add_subplot(deep, across, place)
            paint(axes, one.weights_HTS[head])
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"{one.part} {one.layer}.{one.heads[head]}", fontsize=7, color=INK, parse_math=False)
    return png_bytes(figure)


def _draw_main_map(axes: "Axes", one: LayerMaps, found: Inspection) -> None:
    paint_labelled(axes, one.weights_HTS.mean(dim=0), found.labels(one.rows), found.labels(one.columns))
    heads = f", mean of {len(one.heads)} heads" if len(one.heads) > 1 else ""
    label = f"{one.title}{heads}: rows read columns"
    axes.set_xlabel(label, fontsize=8, color=INK, parse_math=False)
