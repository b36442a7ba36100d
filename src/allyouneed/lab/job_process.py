"""A training run in its own process: `python -m allyouneed.lab.job_process`, started by `lab.runs`.

Standard input holds one line, the job as JSON, and stays open. When it closes, the parent process is gone, and the run
saves a checkpoint and stops. Progress goes to standard output, one line per record; errors go to standard error.
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
from allyouneed.lab.jobs import run_job
from allyouneed.training import Recipe


class Reporter:
    """Reports the progress of the run to the parent process."""

    def note(self, line: str) -> None:
        """Drop notes: those of many runs would be too many."""

    def progress(self, fraction: float, record: dict[str, Any]) -> None:
        """Print the record of a logged step or evaluation."""
        print(json.dumps({"fraction": fraction, "record": record}), flush=True)


def main() -> int:
    """Read the job and train."""
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        run_job(parse(Recipe, job["recipe"]), Path(job["folder"]), job["cores"], Reporter(), job["prepared"])
    except UserError as error:
        print(str(error).replace("\n", " "), file=sys.stderr)
        return error.status
    return 0


def _stop_with_parent() -> None:
    # Read the descriptor directly: a buffered reader would hold a lock that the interpreter needs at exit.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
