"""One process of several that train: `distributed_run.py RUNS.json`, with the environment that torchrun would set.

RUNS.json lists runs, made one after the other in float64: {"recipe", "out", "stop": step or null}. Each process
writes the result of each run to RUNS.json.RANK: "done", or the type of the error and its message.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from allyouneed.config import parse
from allyouneed.errors import UserError
from allyouneed.training import Recipe, train
from allyouneed.training.progress import SilentListener


class Stopper(SilentListener):
    """Stops a run by a signal to this process at a step that is logged."""

    def __init__(self, stop: int | None) -> None:
        self.stop = stop

    def progress(self, fraction: float, record: dict[str, Any]) -> None:
        if record["step"] == self.stop and record["kind"] == "step":
            os.kill(os.getpid(), signal.SIGTERM)


def one(run: dict[str, Any]) -> str:
    try:
        train(parse(Recipe, run["recipe"]), Path(run["out"]), Stopper(run.get("stop")), cores=1)
    except UserError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def main() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    runs = json.loads(Path(sys.argv[1]).read_text())
    results = Path(f"{sys.argv[1]}.{os.environ.get('RANK', '0')}")
    results.write_text(json.dumps([one(run) for run in runs]))
    if dist.is_initialized():
        dist.destroy_process_group()  # without this, an exit while gloo's threads run may abort the process


if __name__ == "__main__":
    main()
