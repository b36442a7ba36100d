"""Test claims: measure their cells, apply their rules, and write the report."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allyouneed.errors import ConfigError, unknown_name
from allyouneed.lab.charts import save_chart
from allyouneed.lab.claims import CLAIMS
from allyouneed.lab.claims.base import Claim, ClaimPart, Effort, Measurements, Result, outcome
from allyouneed.lab.claims.cells import CellProgress, CellResult, ClaimCell, measure_all, stored_result
from allyouneed.lab.claims.overview import draw_overview
from allyouneed.lab.report import Code, Heading, Note, Paragraph, Table, Verdict, write_report
from allyouneed.lab.report import Part as PagePart
from allyouneed.storage import write_atomic, writing
from allyouneed.words import counted

QUESTION = "claims"  # identifies the folder's purpose; claims and seeds can be added


@dataclass(frozen=True)
class ClaimResult:
    """A claim with its result."""

    claim: Claim
    result: Result | None  # None if it could not be measured
    parts: Sequence[ClaimPart]
    found: Measurements
    seconds: float  # CPU time
    errors: Sequence[str] = ()


def chosen(names: Sequence[str]) -> list[Claim]:
    """Return the claims with these names; all claims if no name is given."""
    for name in names:
        if name not in CLAIMS:
            raise ConfigError(f"claim: {unknown_name(name, CLAIMS)}")
    return [claim for claim in CLAIMS.values() if not names or claim.name in names]


def cells_of(claims: Iterable[Claim], seeds: int, effort: Effort) -> list[ClaimCell]:
    """Return all cells that the claims need; shared cells occur once."""
    cells = [
        ClaimCell(claim.cells_of or claim.name, arm, seed, effort)
        for claim in claims
        for seed in range(1, seeds + 1)
        for arm in claim.arms
    ]
    return list(dict.fromkeys(cells))


def try_claims(
    claims: Sequence[Claim],
    folder: Path,
    *,
    seeds: int,
    effort: Effort,
    workers: int = 0,
    progress: CellProgress | None = None,
) -> list[ClaimResult]:
    """Measure the cells that are not stored in the folder, and judge the claims."""
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: should be 1 or more; 3 are enough for most claims")
    measured = measure_all(cells_of(claims, seeds, effort), folder, workers, progress)
    return [_judged(claim, measured, seeds, effort) for claim in claims]


def finished(folder: Path, *, seeds: int, effort: Effort) -> list[ClaimResult]:
    """Return the results of all claims whose cells are stored in the folder."""
    tried = []
    for claim in CLAIMS.values():
        cells = cells_of([claim], seeds, effort)
        known = {cell: found for cell in cells if (found := stored_result(cell, folder)) is not None}
        if len(known) == len(cells):
            tried.append(_judged(claim, known, seeds, effort))
    return tried


def _judged(claim: Claim, measured: dict[ClaimCell, CellResult], seeds: int, effort: Effort) -> ClaimResult:
    own = {cell: measured[cell] for cell in cells_of([claim], seeds, effort)}
    seconds = 0.0 if claim.cells_of else sum(one.seconds for one in own.values())
    errors = list(dict.fromkeys(one.error for one in own.values() if one.error))
    if errors:
        return ClaimResult(claim, None, (), Measurements({}), seconds, errors)
    found = Measurements({arm: [own[cell].numbers for cell in own if cell.arm == arm] for arm in claim.arms})
    parts = claim.parts(found)
    return ClaimResult(claim, outcome(parts), parts, found, seconds)


# --- report ----------------------------------------------------------------------------------------------------------


def command_of(claim: Claim, seeds: int, effort: Effort) -> str:
    """Return the command that reproduces the numbers."""
    return f"allyouneed claims {claim.name} --seeds {seeds}" + (" --quick" if effort == "quick" else "")


def write_page(tried: Sequence[ClaimResult], folder: Path, *, seeds: int, effort: Effort) -> Path:
    """Write report.html, report.json and verdicts.md, a chart for each claim, and an overview of all."""
    with writing(folder):
        (folder / effort).mkdir(parents=True, exist_ok=True)
    rows = [
        [one.claim.name, one.result or "not measured", one.claim.statement, one.claim.source, f"{one.seconds:.0f}"]
        for one in tried
    ]

    parts: list[PagePart] = [
        Paragraph(
            f"{_count(tried)} Each rule is a function of the numbers of {counted(seeds, 'seed')}. If the rule or the "
            "protocol was changed after results were known, the claim states it. A difference counts as shown only if "
            "its 95 % interval excludes the margin and a paired t-test agrees. One refuted part refutes the claim, "
            "after a correction for the number of its parts (Holm)."
        ),
        Table(["claim", "outcome", "statement", "source", "CPU seconds"], rows),
    ]
    charts = [(one.claim.name, one.result, one.claim.chart(one.found)) for one in tried if one.result is not None]
    for name, _, chart in charts:
        save_chart(chart, folder / effort / f"{name}.png")
    if charts:
        draw_overview(folder / effort / "overview.png", charts)
    write_atomic(folder / effort / "verdicts.md", markdown(tried).encode())
    for one in tried:
        parts += _section(one, seeds, effort)
    data = {"effort": effort, "seeds": seeds, "claims": [_data(one, seeds, effort) for one in tried]}
    title = f"Claims of the literature, tested ({effort}, {counted(seeds, 'seed')})"
    return write_report(folder / effort, QUESTION, title, parts, data)


def markdown(tried: Sequence[ClaimResult]) -> str:
    """Format the verdicts as a Markdown table."""
    lines = ["| claim | outcome | evidence (mean, interval over seeds) |", "| --- | --- | --- |"]
    for one in tried:
        parts = [f"{part.statement}: {part.evidence} ({part.result})" for part in one.parts] or one.errors
        claim = f"`{one.claim.name}`: {one.claim.statement} ({one.claim.source})"
        cells = (claim, f"**{one.result or 'not measured'}**", "; ".join(parts))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _count(tried: Sequence[ClaimResult]) -> str:
    results = [one.result or "not measured" for one in tried]
    counts = {name: results.count(name) for name in ("confirmed", "refuted", "not shown", "not measured")}
    return (
        f"{counted(len(tried), 'claim')}: "
        + ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        + "."
    )


def _section(one: ClaimResult, seeds: int, effort: Effort) -> list[PagePart]:
    claim = one.claim
    parts: list[PagePart] = [Heading(f"{claim.name}: {one.result or 'not measured'}"), Paragraph(f"{claim.statement}.")]
    parts += [Verdict(f"{part.result}: {part.statement}: {part.evidence}") for part in one.parts]
    parts += [Verdict(f"could not be measured: {error}") for error in one.errors]
    if one.result is not None:
        parts.append(claim.chart(one.found))
    parts += [Note(f"Source: {claim.source}."), Note(f"Protocol: {claim.protocol}"), Note(f"Rule: {claim.rule}.")]
    if claim.changed:
        parts.append(Note(f"Changed after results were known: {claim.changed}"))
    return [*parts, Code(command_of(claim, seeds, effort)), *_numbers(one)]


def _numbers(one: ClaimResult) -> list[PagePart]:
    if one.result is None:
        return []
    rows = [
        [arm, name, one.found.interval(arm, name).text(), ", ".join(f"{v:.4g}" for v in one.found.values(arm, name))]
        for arm in one.claim.arms
        for name in one.found.names(arm)
    ]
    return [Table(["arm", "number", "mean (interval)", "each seed"], rows)]


def _data(one: ClaimResult, seeds: int, effort: Effort) -> dict[str, Any]:
    claim = one.claim
    return {
        "name": claim.name,
        "says": claim.statement,
        "source": claim.source,
        "protocol": claim.protocol,
        "rule": claim.rule,
        "changed": claim.changed,
        "outcome": one.result or "not measured",
        "parts": [_part_data(part) for part in one.parts],
        "errors": list(one.errors),
        "command": command_of(claim, seeds, effort),
        "seconds": one.seconds,
        "numbers": {arm: [dict(numbers) for numbers in seeds_] for arm, seeds_ in one.found.numbers.items()},
    }


def _part_data(part: ClaimPart) -> dict[str, Any]:
    return {
        "says": part.statement,
        "result": part.result,
        "words": part.evidence,
        "p": part.p,
        "judged": part.judged,
    }
