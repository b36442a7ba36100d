"""`allyouneed verify`: whether a model folder, a run folder or an export is what it says."""

from pathlib import Path
from typing import Annotated

import typer

from allyouneed.errors import FolderError


def command(
    folder: Annotated[Path, typer.Argument(help="A model folder, a run folder, or an export.")],
    scores: Annotated[
        bool, typer.Option("--scores/--no-scores", help="Measure again what the model card states.")
    ] = True,
) -> None:
    """Check every byte, shape and number of a folder, that it loads, and that it gives its recorded scores.

    One line for each thing looked at, a table at the end; the exit status is 2 if something is wrong.
    """
    from allyouneed.cli.terminal import text_table
    from allyouneed.lab.report import Table
    from allyouneed.verification.verify import remedy, verify_folder
    from allyouneed.words import printable

    counts: dict[str, dict[str, int]] = {}
    for finding in verify_folder(folder, scores):
        print(printable(f"{finding.verdict:7}  {finding.what:10}  {finding.where}: {finding.detail}"), flush=True)
        row = counts.setdefault(finding.what, {"ok": 0, "failed": 0, "skipped": 0})
        row[finding.verdict] += 1
    verdicts = ("ok", "failed", "skipped")
    rows = [[what, *(str(row[verdict]) for verdict in verdicts)] for what, row in counts.items()]
    print()
    print(text_table(Table(["check", *verdicts], rows), ruled=True))
    failed, all_checks = (
        sum(row["failed"] for row in counts.values()),
        sum(sum(row.values()) for row in counts.values()),
    )
    if failed:
        wrong = {what for what, row in counts.items() if row["failed"]}
        raise FolderError(f"{folder}: {failed} of {all_checks} checks failed{remedy(folder, wrong)}")
