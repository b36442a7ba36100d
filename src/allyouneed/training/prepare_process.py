"""A process that helps to prepare data: `python -m allyouneed.training.prepare_process`, started by `preparing.py`.

Standard input holds one line, the recipe and the run folder as JSON, and stays open. When it closes, the parent process
is gone, and this one ends. An error is one line on standard error.
"""

import json
import sys
from pathlib import Path

from allyouneed.config import parse
from allyouneed.errors import UserError
from allyouneed.processes import end_with_parent
from allyouneed.training.preparing import run_data
from allyouneed.training.recipe import Recipe


def main() -> int:
    """Read the request and prepare."""
    request = json.loads(sys.stdin.readline())
    end_with_parent()
    try:
        run_data(parse(Recipe, request["recipe"]), Path(request["run"]))
    except UserError as error:
        print(str(error).replace("\n", " "), file=sys.stderr)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
