"""The results of round trips as a table (round_trips.py)."""

import re
from collections.abc import Sequence


def table(results: dict[str, dict[str, str]], steps: Sequence[str]) -> str:
    """Return the results as a table with footnotes."""
    notes: dict[str, int] = {}

    def cell(value: str) -> str:
        if value in ("ok", "-", "FAULT"):
            return value
        reason = re.sub(r"^allyouneed: |^error: ", "", value)
        return f"[{notes.setdefault(reason, len(notes) + 1)}]"

    rows = [[name, *(cell(found[step]) for step in steps)] for name, found in results.items()]
    wide = max(len(row[0]) for row in rows)
    head = "".join(f"{one:>8}" for one in steps)
    lines = [f"{'':{wide}}{head}", *(f"{row[0]:{wide}}" + "".join(f"{one:>8}" for one in row[1:]) for row in rows)]
    return "\n".join([*lines, *(f"[{number}] {reason}" for reason, number in notes.items())])
