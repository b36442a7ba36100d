"""A run in a process of its own: `python -m allyouneed.lab.job`, started by `lab.runs`.

Standard input holds one line, the job as JSON, and then nothing: when it ends, whoever started this is gone, and the
run saves itself and stops. Progress goes to standard output, a line a record; what is wrong to standard error.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from allyouneed.config import parse
from allyouneed.errors import UserError
from allyouneed.lab.runs import run_job
from allyouneed.training import Recipe


class Reporter:
    """Tells the parent how far the run is."""

    def note(self, line: str) -> None:
        """Notes of single runs would be too many."""

    def progress(self, fraction: float, record: dict[str, Any]) -> None:
        """A step was logged, or an evaluation made."""
        print(json.dumps({"fraction": fraction, "record": record}), flush=True)


def main() -> int:
    """Reads the job, makes the run."""
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        run_job(parse(Recipe, job["recipe"]), Path(job["folder"]), job["cores"], Reporter())
    except UserError as error:
        print(str(error).replace("\n", " "), file=sys.stderr)
        return error.status
    return 0


def _stop_with_parent() -> None:
    # By the descriptor itself: a buffered reader would hold a lock that the interpreter wants when it ends.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
