"""Findings in words, and as a page with pictures."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from allyouneed.corpus.clean import Cleaned
from allyouneed.corpus.examine import Examination, Findings
from allyouneed.corpus.kinds import KINDS, Rules
from allyouneed.corpus.survey import Survey
from allyouneed.lab.charts import Bar, Bars, Chart, Curve
from allyouneed.lab.report import Heading, Note, Paragraph, Part, Table, write_report
from allyouneed.words import counted

QUESTION = "defects of a corpus"
BINS = 40


def in_words(name: str, examination: Examination, sides: Sequence[str], cleaned: Cleaned | None = None) -> list[str]:
    """Return the findings, line by line."""
    found = examination.findings
    share = _share(found.defective, found.rows)
    lines = [f"{name}: {counted(found.rows, 'row')}, {found.defective:,} with defects ({share})"]
    for kind, count in _by_count(found):
        lines.append(f"{count:>12,}  {_share(count, found.rows):>7}  {kind}: {KINDS[kind].meaning}")
        lines += [f"{'':25}{example}" for example in found.examples[kind]]
    lines += _usual(examination.survey, sides)
    if found.held_out:
        lines.append(
            f"held-out: {found.held_out_found:,} of {counted(found.held_out, 'row')} "
            f"({_share(found.held_out_found, found.held_out)}) have a near-copy in the data"
        )
    if cleaned is not None:
        lines.append(f"kept: {counted(cleaned.kept, 'row')}; dropped: {cleaned.dropped:,}")
        lines += [f"{count:>12,}  {kind}" for kind, count in cleaned.reasons.most_common()]
    return lines


def _by_count(found: Findings) -> list[tuple[str, int]]:
    return found.counts.most_common()


def _share(count: int, of: int) -> str:
    return f"{100 * count / of:.2f} %" if of else "-"


def _usual(survey: Survey, sides: Sequence[str]) -> list[str]:
    """Return lines that state what is usual in the corpus."""
    scripts = [
        f"{side} in {' and '.join(sorted(known)).lower() or 'no'} letters"
        for side, known in zip(sides, survey.scripts, strict=False)
    ]
    lines = [f"usual: {', '.join(scripts)}"]
    if len(survey.scripts) == 2:
        lines[0] += f"; {survey.ratio:.2f} target characters per source character"
        if not survey.languages.separate:
            lines.append("note: both sides look like one language; swapped and wrong languages are not searched for")
    return lines


def write_page(
    folder: Path,
    name: str,
    examination: Examination,
    rules: Rules,
    sides: Sequence[str],
    cleaned: Cleaned | None = None,
) -> Path:
    """Write report.html and report.json into a folder."""
    found = examination.findings
    data = {
        "rows": found.rows,
        "defective": found.defective,
        "counts": dict(_by_count(found)),
        "held_out": {"rows": found.held_out, "found": found.held_out_found},
        "rules": rules.model_dump(),
        "usual": {
            "scripts": [sorted(known) for known in examination.survey.scripts],
            "ratio": examination.survey.ratio,
            "separate_languages": examination.survey.languages.separate,
        },
    }
    if cleaned is not None:
        data["clean"] = {"kept": cleaned.kept, "dropped": cleaned.dropped, "reasons": dict(cleaned.reasons)}
    title = f"Defects of {name}"
    return write_report(folder, QUESTION, title, list(_parts(name, examination, rules, sides, cleaned)), data)


def _parts(
    name: str, examination: Examination, rules: Rules, sides: Sequence[str], cleaned: Cleaned | None
) -> Iterator[Part]:
    found, survey = examination.findings, examination.survey
    words = in_words(name, examination, sides, cleaned)
    yield Paragraph(words[0])
    for line in words[1:]:
        if not line.startswith(" "):
            yield Paragraph(line)
    if found.counts:
        yield Heading("Defects")
        rows = [
            [kind, f"{count:,}", _share(count, found.rows), KINDS[kind].meaning] for kind, count in _by_count(found)
        ]
        yield Table(["kind", "rows", "share", "meaning"], rows)
        bars = [
            Bar(kind, 100 * count / found.rows, *[100 * count / found.rows] * 2) for kind, count in _by_count(found)
        ]
        yield Bars("Rows with defects", "% of all rows", bars)
        yield Heading("Examples")
        yield Table(["kind", "row"], [[kind, one] for kind, _ in _by_count(found) for one in found.examples[kind]])
    yield Heading("Lengths")
    yield Note(f"Of a sample of {counted(len(survey.sample), 'row')}, at equal distances.")
    texts = [[row[side] for row in survey.sample] for side in range(len(survey.scripts))]
    curves = [_histogram(side, [len(text) for text in of_side]) for side, of_side in zip(sides, texts, strict=False)]
    yield Chart("Characters of a text", "characters", "% of rows", curves, log_x=True)
    if len(texts) == 2:
        ratios = [len(target) / len(source) for source, target in survey.sample if source and target]
        limits = (
            f"usual: {survey.ratio:.2f}; limits: {survey.ratio / rules.ratio:.2f} and {survey.ratio * rules.ratio:.2f}"
        )
        curve = _histogram("ratio", ratios)
        yield Chart("Target characters per source character", "ratio", "% of rows", [curve], log_x=True, note=limits)


def _histogram(name: str, values: Sequence[float]) -> Curve:
    """Return the shares of values in bins of equal ratio."""
    logs = np.log([value for value in values if value > 0] or [1.0])
    low, high = float(logs.min()), float(logs.max())
    counts, edges = np.histogram(logs, bins=BINS, range=(low - 0.01, max(high, low) + 0.01))
    middles = (edges[1:] + edges[:-1]) / 2
    return Curve(name, [math.exp(one) for one in middles], [100 * int(count) / len(logs) for count in counts])
