"""Compare three ways to train on two cores: two processes (DDP), two threads with replicas, two OpenMP threads.

    python benchmarks/parallel_speed.py [--rounds 9] [--steps 10] [--recipe numbers-en-de]

    ddp        two processes of one thread; gradients are summed through gloo
    replicas   one process, `train.workers = 2`: one micro-batch per thread, shared weights (training/workers.py)
    openmp     one process, `train.workers = 1`: every operation is split between two threads

All arms train the same recipe with the same micro-batches. Their processes stay alive and alternate, round after round,
so that load on the machine affects all of them. Ratios are computed per round; medians and half of the interquartile
range are printed. Before anything is timed, the losses must agree.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from allyouneed import __version__  # its import sets how the threads of all children wait

CORES = 2
ARMS: dict[str, list[str]] = {
    "ddp": ["train.parallel=ddp", "train.workers=1"],
    "replicas": ["train.workers=2"],
    "openmp": ["train.workers=1"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="training steps per round (default: %(default)s)")
    parser.add_argument("--recipe", default="numbers-en-de", help="default: %(default)s")
    parser.add_argument("--set", action="append", default=[], dest="sets", help="a setting of the recipe")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="default: all")
    parser.add_argument("--serve", metavar="ARM", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.arms = ["ddp", *(arm for arm in options.arms if arm != "ddp")]
    if options.serve:
        serve(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        arms = {arm: start(arm, options, f"{folder}/{arm}") for arm in options.arms}
        losses = {arm: [turn["loss"] for turn in (ask(arms[arm], 1), ask(arms[arm], 1))] for arm in arms}
        for arm in arms:
            if any(abs(x - y) > 1e-3 * y for x, y in zip(losses[arm], losses["ddp"], strict=True)):
                sys.exit(f"the losses of {arm} are {losses[arm]}, not {losses['ddp']}")
        rounds = [{arm: ask(arms[arm], options.steps) for arm in arms} for _ in range(options.rounds)]
        for processes in arms.values():
            for process in processes:
                process.communicate()
    report(rounds, options)


def report(rounds: list[dict[str, Any]], options: argparse.Namespace) -> None:
    what = " ".join([options.recipe, *options.sets])
    print(
        f"{what}; {options.rounds} rounds of {options.steps} steps; {CORES} cores; {__version__}, {torch.__version__}"
    )
    print("| arm | tokens / s | tokens / CPU-second | ddp / this, wall clock | ddp / this, CPU |")
    print("| --- | --- | --- | --- | --- |")
    for arm in options.arms:
        speeds = {kind: [r[arm]["tokens"] / r[arm][kind] for r in rounds] for kind in ("seconds", "cpu")}
        ratios = {
            kind: [r["ddp"]["tokens"] / r["ddp"][kind] / (r[arm]["tokens"] / r[arm][kind]) for r in rounds]
            for kind in ("seconds", "cpu")
        }
        cells = [
            spread(speeds["seconds"], 0),
            spread(speeds["cpu"], 0),
            spread(ratios["seconds"]),
            spread(ratios["cpu"]),
        ]
        print(f"| {arm} | {' | '.join(cells)} |")


def spread(values: list[float], digits: int = 2) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:,.{digits}f} ± {(high - low) / 2:,.{digits}f}"


def start(arm: str, options: argparse.Namespace, folder: str) -> list["subprocess.Popen[str]"]:
    """Start the processes of an arm."""
    sets = [word for one in options.sets for word in ("--set", one)]
    command = [sys.executable, __file__, "--serve", arm, "--folder", folder, "--recipe", options.recipe, *sets]
    environment = {**os.environ, "OMP_NUM_THREADS": str(CORES if arm == "openmp" else 1)}
    each: list[dict[str, str]] = [{}]
    if arm == "ddp":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(CORES)}
        each = [{**common, "LOCAL_WORLD_SIZE": str(CORES), "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(CORES)]
    return [
        subprocess.Popen(
            command, env=environment | one, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for one in each
    ]


def ask(processes: list["subprocess.Popen[str]"], steps: int) -> dict[str, float]:
    """Run some steps of an arm; return the time of the slowest process, and the CPU time of all."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{steps}\n")
    answers = []
    for process in processes:
        assert process.stdout is not None
        answers.append(json.loads(process.stdout.readline()))
    return {
        "tokens": answers[0]["tokens"],
        "loss": answers[0]["loss"],
        "seconds": max(answer["seconds"] for answer in answers),
        "cpu": sum(answer["cpu"] for answer in answers),
    }


def serve(options: argparse.Namespace) -> None:
    """Run one process of an arm."""
    from allyouneed.training import load_recipe
    from allyouneed.training.loop import Run
    from allyouneed.training.process_group import ProcessGroup
    from allyouneed.training.progress import SilentListener

    recipe = load_recipe(options.recipe, None, [*options.sets, *ARMS[options.serve], "train.log_every=1000000"])
    group = ProcessGroup(recipe.train.parallel)
    group.join(torch.device("cpu"))
    folder = Path(options.folder)
    folder.mkdir(exist_ok=True)
    run = Run(recipe, folder, SilentListener(), torch.device("cpu"), CORES // group.size, group)
    for line in sys.stdin:
        tokens, cpu, seconds = run.progress.spent.tokens, time.process_time(), time.monotonic()
        for _ in range(int(line)):
            run.has_budget()  # the agreement between processes is part of the cost
            run.step()
        spent = {"seconds": time.monotonic() - seconds, "cpu": time.process_time() - cpu}
        print(
            json.dumps({"tokens": run.progress.spent.tokens - tokens, "loss": run.progress.losses[-1], **spent}),
            flush=True,
        )
    run.close()
    group.leave()


if __name__ == "__main__":
    main()
