"""A process that measures cells, one after the other: `python -m allyouneed.lab.claims.worker`, started by `work.py`.

A line on standard input names a cell, a line on standard output holds its numbers. When standard input ends, whoever
started this is gone, and it ends at once, in the middle of a cell or not.
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
    """Measures whatever it is told to."""
    told: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(told,), daemon=True).start()
    while True:
        print(json.dumps(_measure(json.loads(told.get()))), flush=True)


def _measure(cell: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(cell["seed"])
    begun = time.process_time()
    try:
        numbers = dict(CLAIMS[cell["claim"]].measure(cell["arm"], cell["seed"], cell["effort"]))
    except UserError as error:
        return {"error": str(error).replace("\n", " ")}
    return {"numbers": numbers, "seconds": round(time.process_time() - begun, 2)}


def _listen(told: "SimpleQueue[str]") -> None:
    for line in sys.stdin:
        told.put(line)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
