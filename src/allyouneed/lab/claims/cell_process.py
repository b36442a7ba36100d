"""A process that measures cells, one after the other:
`python -m allyouneed.lab.claims.cell_process`, started by `cells.py`.

Each line on standard input names a cell; each line on standard output holds its numbers. When standard input closes,
the parent is gone, and the process exits at once, even in the middle of a cell.
"""

import json
import os
import sys
import threading
import time
from queue import SimpleQueue
from typing import Any

import torch

from allyouneed.errors import UserError
from allyouneed.lab.claims import CLAIMS


def main() -> int:
    """Measure the requested cells."""
    requests: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    while True:
        print(json.dumps(_measure(json.loads(requests.get()))), flush=True)


def _measure(cell: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(cell["seed"])
    started = time.process_time()
    try:
        numbers = dict(CLAIMS[cell["claim"]].measure(cell["arm"], cell["seed"], cell["effort"]))
    except UserError as error:
        return {"error": str(error).replace("\n", " ")}
    return {"numbers": numbers, "seconds": round(time.process_time() - started, 2)}


def _listen(requests: "SimpleQueue[str]") -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
