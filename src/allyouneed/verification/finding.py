"""The result of one check of a folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from allyouneed.errors import UserError

Verdict = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str  # manifest, sha256, shapes, numbers, score, ...
    where: str
    verdict: Verdict
    detail: str


def attempt(what: str, where: Path, check: Callable[[], str]) -> Finding:
    """Run a check that returns a detail, or raises UserError if it fails."""
    try:
        return Finding(what, str(where), "ok", check())
    except UserError as error:
        return failed(what, where, error)


def failed(what: str, where: Path, error: UserError) -> Finding:
    """Return an error as a finding about a place, or about the file inside it that the message names."""
    rest = str(error).removeprefix(str(where))
    file, colon, detail = rest.partition(": ")
    if rest != str(error) and colon and (not file or file.startswith("/")):
        return Finding(what, f"{where}{file}", "failed", detail)
    return Finding(what, str(where), "failed", str(error))
