"""Claims tried: their cells measured, their rules applied, and the page that says what came out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allyouneed.errors import ConfigError, unknown_name
from allyouneed.lab.charts import save_chart
from allyouneed.lab.claims import CLAIMS
from allyouneed.lab.claims.base import Claim, Effort, Found, Part, Result, outcome
from allyouneed.lab.claims.overview import draw_overview
from allyouneed.lab.claims.work import Cell, Measured, Watch, kept, measure_all
from allyouneed.lab.report import Code, Heading, Note, Table, Text, Verdict, write_report
from allyouneed.lab.report import Part as PagePart
from allyouneed.storage import write_atomic, writing
from allyouneed.words import counted

QUESTION = "claims"  # what a folder is for: claims and seeds can be added


@dataclass(frozen=True)
class Tried:
    """A claim, and what became of it."""

    claim: Claim
    result: Result | None  # None: it could not be measured
    parts: Sequence[Part]
    found: Found
    seconds: float  # of the processor
    errors: Sequence[str] = ()


def chosen(names: Sequence[str]) -> list[Claim]:
    """The claims of these names; all, if there are none."""
    for name in names:
        if name not in CLAIMS:
            raise ConfigError(f"claim: {unknown_name(name, CLAIMS)}")
    return [claim for claim in CLAIMS.values() if not names or claim.name in names]


def cells_of(claims: Iterable[Claim], seeds: int, effort: Effort) -> list[Cell]:
    """Everything that the claims need; what two of them share comes once."""
    cells = [
        Cell(claim.cells_of or claim.name, arm, seed, effort)
        for claim in claims
        for seed in range(1, seeds + 1)
        for arm in claim.arms
    ]
    return list(dict.fromkeys(cells))


def try_claims(
    claims: Sequence[Claim], folder: Path, *, seeds: int, effort: Effort, workers: int = 0, watch: Watch | None = None
) -> list[Tried]:
    """Measures what is not kept in the folder, and judges."""
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: should be 1 or more; 3 are enough for most claims")
    measured = measure_all(cells_of(claims, seeds, effort), folder, workers, watch)
    return [_judged(claim, measured, seeds, effort) for claim in claims]


def finished(folder: Path, *, seeds: int, effort: Effort) -> list[Tried]:
    """All claims whose cells are kept in the folder."""
    tried = []
    for claim in CLAIMS.values():
        cells = cells_of([claim], seeds, effort)
        known = {cell: found for cell in cells if (found := kept(cell, folder)) is not None}
        if len(known) == len(cells):
            tried.append(_judged(claim, known, seeds, effort))
    return tried


def _judged(claim: Claim, measured: dict[Cell, Measured], seeds: int, effort: Effort) -> Tried:
    own = {cell: measured[cell] for cell in cells_of([claim], seeds, effort)}
    seconds = 0.0 if claim.cells_of else sum(one.seconds for one in own.values())
    errors = list(dict.fromkeys(one.error for one in own.values() if one.error))
    if errors:
        return Tried(claim, None, (), Found({}), seconds, errors)
    found = Found({arm: [own[cell].numbers for cell in own if cell.arm == arm] for arm in claim.arms})
    parts = claim.parts(found)
    return Tried(claim, outcome(parts), parts, found, seconds)


# --- what is written -------------------------------------------------------------------------------------------------


def command_of(claim: Claim, seeds: int, effort: Effort) -> str:
    """What makes the same numbers again."""
    return f"allyouneed claims {claim.name} --seeds {seeds}" + (" --quick" if effort == "quick" else "")


def write_page(tried: Sequence[Tried], folder: Path, *, seeds: int, effort: Effort) -> Path:
    """report.html, report.json and verdicts.md for all of them, a picture for each, and one of all."""
    with writing(folder):
        (folder / effort).mkdir(parents=True, exist_ok=True)
    rows = [
        [one.claim.name, one.result or "not measured", one.claim.says, one.claim.source, f"{one.seconds:.0f}"]
        for one in tried
    ]
    kind = "quick" if effort == "quick" else "full"
    parts: list[PagePart] = [
        Text(
            f"{_count(tried)} Each rule is a function of the numbers of {counted(seeds, 'seed')}; where it or the "
            "protocol was changed after numbers had been seen, the claim says so. A difference counts as shown only if "
            "its 95 % interval leaves out the margin and a paired t-test agrees. One part that is refuted "
            "refutes the claim, after a correction for the number of its parts (Holm)."
        ),
        Table(["claim", "outcome", "what it says", "source", "CPU seconds"], rows),
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
    title = f"Claims of the literature, tried ({kind}, {counted(seeds, 'seed')})"
    return write_report(folder / effort, QUESTION, title, parts, data)


def markdown(tried: Sequence[Tried]) -> str:
    """The verdicts as a table for a page of documentation."""
    lines = ["| claim | outcome | what was found (mean, interval over seeds) |", "| --- | --- | --- |"]
    for one in tried:
        found = "; ".join(f"{part.says}: {part.words} ({part.result})" for part in one.parts) or "; ".join(one.errors)
        said = f"`{one.claim.name}`: {one.claim.says} ({one.claim.source})"
        cells = (said, f"**{one.result or 'not measured'}**", found)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _count(tried: Sequence[Tried]) -> str:
    results = [one.result or "not measured" for one in tried]
    counts = {name: results.count(name) for name in ("confirmed", "refuted", "not shown", "not measured")}
    return (
        f"{counted(len(tried), 'claim')}: "
        + ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        + "."
    )


def _section(one: Tried, seeds: int, effort: Effort) -> list[PagePart]:
    claim = one.claim
    parts: list[PagePart] = [Heading(f"{claim.name}: {one.result or 'not measured'}"), Text(f"{claim.says}.")]
    parts += [Verdict(f"{part.result}: {part.says}: {part.words}") for part in one.parts]
    parts += [Verdict(f"could not be measured: {error}") for error in one.errors]
    if one.result is not None:
        parts.append(claim.chart(one.found))
    parts += [Note(f"Source: {claim.source}."), Note(f"Protocol: {claim.protocol}"), Note(f"Rule: {claim.rule}.")]
    if claim.changed:
        parts.append(Note(f"Changed after numbers had been seen: {claim.changed}"))
    return [*parts, Code(command_of(claim, seeds, effort)), *_numbers(one)]


def _numbers(one: Tried) -> list[PagePart]:
    if one.result is None:
        return []
    rows = [
        [arm, name, one.found.interval(arm, name).text(), ", ".join(f"{v:.4g}" for v in one.found.values(arm, name))]
        for arm in one.claim.arms
        for name in one.found.names(arm)
    ]
    return [Table(["arm", "number", "mean (interval)", "each seed"], rows)]


def _data(one: Tried, seeds: int, effort: Effort) -> dict[str, Any]:
    claim = one.claim
    return {
        "name": claim.name,
        "says": claim.says,
        "source": claim.source,
        "protocol": claim.protocol,
        "rule": claim.rule,
        "changed": claim.changed,
        "outcome": one.result or "not measured",
        "parts": [vars(part) for part in one.parts],
        "errors": list(one.errors),
        "command": command_of(claim, seeds, effort),
        "seconds": one.seconds,
        "numbers": {arm: [dict(numbers) for numbers in seeds_] for arm, seeds_ in one.found.numbers.items()},
    }
