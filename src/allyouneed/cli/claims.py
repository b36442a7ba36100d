"""`allyouneed claims`: claims of the literature, each tried by an experiment that can refute it."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allyouneed.cli.terminal import note
from allyouneed.errors import ConfigError
from allyouneed.words import counted

if TYPE_CHECKING:
    from allyouneed.lab.claims.verdicts import Tried
    from allyouneed.lab.claims.work import Measured


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Claims to try; without any they are listed.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Try all of them.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A quarter of the training. Alone: all claims, in 20 minutes on 2 cores.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(help="How often all is measured; fewer than 3 show next to nothing.", show_default="3"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where numbers, pictures and the report go.", show_default="runs/claims")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes at a time.", show_default="as many as cores")] = None,
) -> None:
    """Try claims of the literature: confirmed, refuted or not shown, with numbers, a picture and a page.

    What was measured is kept in the folder and not measured again: the same command goes on after an interruption.
    """
    from allyouneed.lab.claims.base import Effort
    from allyouneed.lab.claims.verdicts import QUESTION, cells_of, chosen, finished, try_claims, write_page
    from allyouneed.lab.report import require_own

    claims = chosen(names or [])
    if names and everything:
        raise ConfigError(f"--all tries every claim, {', '.join(names)} only some: give one of both")
    if not (names or everything or quick):
        if not (seeds is None and out is None and workers is None):
            raise ConfigError("without a claim they are only listed; to try them add names, --quick or --all")
        width = max(len(claim.name) for claim in claims)
        print("\n".join(f"{claim.name:{width}}  {claim.says}  ({claim.source})" for claim in claims))
        return
    seeds, out = 3 if seeds is None else seeds, out or Path("runs/claims")
    effort: Effort = "quick" if quick else "full"
    require_own(out / effort, QUESTION)
    watch = Lines(len(cells_of(claims, seeds, effort)))
    tried = try_claims(claims, out, seeds=seeds, effort=effort, workers=workers or 0, watch=watch)
    known = {one.claim.name: one for one in (*finished(out, seeds=seeds, effort=effort), *tried)}
    order = [known[claim.name] for claim in chosen([]) if claim.name in known]
    page = write_page(order, out, seeds=seeds, effort=effort)
    _print_verdicts(tried)
    print(f"report: {page}")


class Lines:
    """A line on standard error for each thing measured."""

    def __init__(self, cells: int) -> None:
        self._left, self._begun = cells, time.monotonic()

    def kept(self, count: int) -> None:
        """So many were measured before."""
        self._left -= count
        if count:
            note(f"{count} of {counted(count + self._left, 'measurement')} kept from before")

    def done(self, measured: "Measured") -> None:
        """One more."""
        self._left -= 1
        cell, minutes = measured.cell, (time.monotonic() - self._begun) / 60
        said = measured.error or ", ".join(f"{name} {value:.3g}" for name, value in list(measured.numbers.items())[:3])
        note(f"{minutes:5.1f} min  {self._left:3} left  {cell.claim}, {cell.arm}, seed {cell.seed}: {said}")


def _print_verdicts(tried: "list[Tried]") -> None:
    width = max(len(one.claim.name) for one in tried)
    for one in tried:
        print(f"{one.claim.name:{width}}  {(one.result or 'not measured').upper():12}  {one.claim.says}")
        for part in one.parts:
            print(f"{'':{width}}    {part.result}: {part.says}: {part.words}")
        for error in one.errors:
            print(f"{'':{width}}    {error}")
