"""`allyouneed verify`: check a model folder, a run folder, an export or an adapter."""

from pathlib import Path
from typing import Annotated

import typer

from allyouneed.errors import FolderError


def command(
    folder: Annotated[Path, typer.Argument(help="Model folder, run folder, export or adapter.")],
    scores: Annotated[
        bool, typer.Option("--scores/--no-scores", help="Measure the scores on the model card again, and compare them.")
    ] = True,
) -> None:
    """Check that a folder is intact and reproduces its scores.

    Checks file hashes, tensor shapes and values, and measures the recorded scores again. Prints one line for each
    check and a table at the end. The exit status is 2 if a check fails.
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
