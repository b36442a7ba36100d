"""`allyouneed claims`: test claims of the literature, each with an experiment that can refute it."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allyouneed.cli.terminal import note
from allyouneed.errors import ConfigError
from allyouneed.words import counted

if TYPE_CHECKING:
    from allyouneed.lab.claims.cells import CellResult
    from allyouneed.lab.claims.verdicts import ClaimResult


def command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Claims to test. Without names, --all and --quick: list all claims.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Test all claims.")] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Train for a quarter of the steps. Without names, test all claims (20 minutes on 2 cores).",
        ),
    ] = False,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds; use at least 3.", show_default="3")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for numbers, charts and the report.", show_default="runs/claims")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Number of worker processes.", show_default="number of cores")
    ] = None,
) -> None:
    """Test claims of the literature by experiment.

    Each claim is confirmed, refuted or not shown. The command writes numbers, charts and a report. It stores every
    measurement, so after an interruption the same command resumes.
    """
    from allyouneed.lab.claims.base import Effort
    from allyouneed.lab.claims.verdicts import QUESTION, cells_of, chosen, finished, try_claims, write_page
    from allyouneed.lab.report import require_same_experiment

    claims = chosen(names or [])
    if names and everything:
        raise ConfigError(f"--all tests every claim, but {', '.join(names)} was given too; use one of the two")
    if not (names or everything or quick):
        if not (seeds is None and out is None and workers is None):
            raise ConfigError("without a claim, claims are only listed; to test them, add names, --quick or --all")
        width = max(len(claim.name) for claim in claims)
        print("\n".join(f"{claim.name:{width}}  {claim.statement}  ({claim.source})" for claim in claims))
        return
    seeds, out = 3 if seeds is None else seeds, out or Path("runs/claims")
    effort: Effort = "quick" if quick else "full"
    require_same_experiment(out / effort, QUESTION)
    progress = CellLines(len(cells_of(claims, seeds, effort)))
    tried = try_claims(claims, out, seeds=seeds, effort=effort, workers=workers or 0, progress=progress)
    known = {one.claim.name: one for one in (*finished(out, seeds=seeds, effort=effort), *tried)}
    order = [known[claim.name] for claim in chosen([]) if claim.name in known]
    page = write_page(order, out, seeds=seeds, effort=effort)
    _print_verdicts(tried)
    print(f"report: {page}")


class CellLines:
    """Progress on standard error, one line for each measurement."""

    def __init__(self, cells: int) -> None:
        self._left, self._started = cells, time.monotonic()

    def kept(self, count: int) -> None:
        """Report the number of measurements reused from an earlier call."""
        self._left -= count
        if count:
            note(f"{count} of {counted(count + self._left, 'measurement')} kept from before")

    def done(self, measured: "CellResult") -> None:
        """Report a finished measurement."""
        self._left -= 1
        cell, minutes = measured.cell, (time.monotonic() - self._started) / 60
        text = measured.error or ", ".join(f"{name} {value:.3g}" for name, value in list(measured.numbers.items())[:3])
        note(f"{minutes:5.1f} min  {self._left:3} left  {cell.claim}, {cell.arm}, seed {cell.seed}: {text}")


def _print_verdicts(tried: "list[ClaimResult]") -> None:
    width = max(len(one.claim.name) for one in tried)
    for one in tried:
        print(f"{one.claim.name:{width}}  {(one.result or 'not measured').upper():12}  {one.claim.statement}")
        for part in one.parts:
            print(f"{'':{width}}    {part.result}: {part.statement}: {part.evidence}")
        for error in one.errors:
            print(f"{'':{width}}    {error}")
