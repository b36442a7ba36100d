"""Reports: one self-contained HTML file, and the same numbers as JSON.

All text is escaped. Charts are embedded as images, in which scripts do not run. The page's Content-Security-Policy
forbids scripts and network access, whatever a name or a text from data contains.
"""

import base64
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allyouneed.errors import ConfigError
from allyouneed.lab.charts import AnyChart, svg
from allyouneed.storage import write_atomic, writing
from allyouneed.version import __version__

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1b2a41; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.7rem } h2 { font-size: 1.25rem; margin-top: 2.2rem; border-bottom: 1px solid #d9dee7 }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #e6e9ef }
th { font-weight: 600; border-bottom: 2px solid #8d99ae; vertical-align: bottom }
td { vertical-align: top; white-space: nowrap } .text { text-align: left; white-space: normal; min-width: 5rem }
.scroll { overflow-x: auto } img { max-width: 100%; min-width: 32rem; height: auto } .note { color: #5b6779 }
pre { background: #f4f6f9; padding: .7rem 1rem; border-radius: 4px; white-space: pre-wrap; overflow-wrap: anywhere }
h1, h2, p { overflow-wrap: break-word }
.verdict { border-left: 4px solid #0072b2; padding: .3rem 1rem; background: #f4f6f9; margin: .6rem 0 }
"""
DATA = "report.json"
NUMBER = re.compile(r"[(×+-]* ?\d")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Heading:
    """A section heading."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Note:
    """A paragraph in a lighter colour, for example on the method of a measurement."""

    text: str


@dataclass(frozen=True)
class Verdict:
    """A highlighted paragraph that states a result."""

    text: str


@dataclass(frozen=True)
class Code:
    """A command or a recipe, verbatim."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table of text cells; the first column holds names."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def holds_text(self, place: int) -> bool:
        """True if a column is left-aligned: the first one, and those in which no cell starts with a number."""
        return place == 0 or not any(NUMBER.match(row[place]) for row in self.rows)


Part = Heading | Paragraph | Note | Verdict | Code | Table | AnyChart


def write_report(folder: Path, question: str, title: str, parts: Sequence[Part], data: Mapping[str, Any]) -> Path:
    """Write the page (report.html) and `data` (report.json). `question`: see `require_same_experiment`."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    facts = {"allyouneed": __version__, "question": question, "title": title}
    write_atomic(folder / DATA, to_json({**facts, **data}))
    write_atomic(folder / "report.html", page(title, parts).encode())
    return folder / "report.html"


def require_same_experiment(folder: Path, question: str) -> None:
    """Raise ConfigError if the folder holds the report of another experiment, which would be overwritten.

    Call this before any work starts.
    """
    try:
        found = json.loads((folder / DATA).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    other = found.get("question", question) if isinstance(found, dict) else question
    if other != question:
        raise ConfigError(f"--out {folder}: holds the report of '{other}', not of '{question}'; choose another --out")


def page(title: str, parts: Sequence[Part]) -> str:
    """Return the complete HTML file."""
    body = "\n".join(_part(part) for part in parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{html.escape(title)}</h1>\n"
        f'{body}\n<p class="note">allyouneed {__version__}</p>\n</body>\n</html>\n'
    )


def to_json(data: Any) -> bytes:
    """Return strictly valid JSON: NaN and infinities become null."""
    return (json.dumps(_plain(data), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _plain(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(name): _plain(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return data


def _part(part: Part) -> str:
    match part:
        case Heading(text):
            return f"<h2>{html.escape(text)}</h2>"
        case Paragraph(text):
            return f"<p>{html.escape(text)}</p>"
        case Note(text):
            return f'<p class="note">{html.escape(text)}</p>'
        case Verdict(text):
            return f'<p class="verdict">{html.escape(text)}</p>'
        case Code(text):
            return f"<pre>{html.escape(text)}</pre>"
        case Table():
            return _table(part)
        case _:
            encoded = base64.b64encode(svg(part).encode()).decode()
            return (
                f'<p class="scroll"><img alt="{html.escape(part.title)}" src="data:image/svg+xml;base64,{encoded}"></p>'
            )


def _table(table: Table) -> str:
    attributes = [' class="text"' * table.holds_text(place) for place in range(len(table.columns))]
    head = "".join(f"<th{attr}>{html.escape(cell)}</th>" for attr, cell in zip(attributes, table.columns, strict=True))
    rows = "".join(
        "<tr>"
        + "".join(f"<td{attr}>{html.escape(cell)}</td>" for attr, cell in zip(attributes, row, strict=True))
        + "</tr>\n"
        for row in table.rows
    )
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>'
