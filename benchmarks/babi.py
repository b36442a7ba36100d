"""Train one model per bAbI task over several seeds, and print test errors next to published ones.

    python benchmarks/babi.py --out runs/babi [--recipe memn2n-babi] [--size en] [--tasks 1,2,3] [--seeds 3] [--set ...]

Each run is equivalent to `allyouneed train RECIPE --set task.task=N --seed S`, in this process, on one thread. Finished
runs are not repeated; the table is printed from the stored results. Each task has two numbers: the mean over seeds, and
the error of the run with the lowest training loss (the paper selects it from ten runs).
"""

import argparse
import json
import resource
import statistics
from pathlib import Path

import torch
from results_cache import cached_result

from allyouneed.evaluation.measure import evaluate_split
from allyouneed.folder import load_folder
from allyouneed.training import load_recipe, train
from allyouneed.training.evaluate import find_score

# Test errors in per cent, 1,000 questions for each task, 3 hops, position encoding, linear start, random noise:
# the authors' MATLAB code, one model per task, from the benchmarks page of vinhkhuc/MemN2N-babi-python; and the paper's
# "PE LS RN joint", one model for all tasks, as quoted in a public repository (its mean, 12.4, agrees).
AUTHORS = "0.1 8.2 41.8 4.4 13.7 7.9 20.3 11.7 13.6 9.7 0.7 0.0 0.3 0.9 0.0 0.4 51.0 10.5 81.4 0.0"
JOINT = "0.0 11.4 21.9 13.4 14.4 2.8 18.3 9.3 1.9 6.5 0.3 0.1 0.2 6.9 0.0 2.7 40.4 9.4 88.0 0.0"
PUBLISHED = {"authors' code": AUTHORS, "paper, joint": JOINT}
FAILED = 5.0  # per cent; a task with more errors counts as failed (Weston et al. 2015)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--recipe", default="memn2n-babi", help="default: %(default)s")
    parser.add_argument("--size", default="en", choices=["en", "en-10k"], help="data set (default: %(default)s)")
    parser.add_argument("--tasks", default=",".join(map(str, range(1, 21))), help="comma-separated task numbers")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: %(default)s)")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="a setting of the recipe")
    options = parser.parse_args()
    torch.set_num_threads(1)
    numbers = [int(number) for number in options.tasks.split(",")]
    published = PUBLISHED if options.size == "en" else {}
    rows = []
    for number in numbers:
        sets = [f"task.task={number}", f"task.size={options.size}", *options.sets]
        runs = [run(options, [*sets, f"seed={seed}"], f"{number}-{seed}") for seed in range(1, options.seeds + 1)]
        errors = [one["error"] for one in runs]
        chosen = min(runs, key=lambda one: one["loss"])["error"]
        others = [float(column.split()[number - 1]) for column in published.values()]
        rows.append([statistics.mean(errors), chosen, *others])
        seconds = statistics.mean(one["seconds"] for one in runs)
        cells = [f"{rows[-1][0]:.1f}", f"{min(errors):.1f}-{max(errors):.1f}", *(f"{x:.1f}" for x in rows[-1][1:])]
        if number == numbers[0]:
            heads = ["task", "mean", "spread", "lowest training loss", *published, "CPU seconds"]
            print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}", flush=True)
        print(f"| {number} | {' | '.join(cells)} | {seconds:.0f} |", flush=True)
    means = [f"{statistics.mean(column):.1f}" for column in zip(*rows, strict=True)]
    failed = [str(sum(error > FAILED for error in column)) for column in zip(*rows, strict=True)]
    for name, (first, *rest) in (("mean", means), (f"above {FAILED:g} %", failed)):
        print(f"| {name} | {' | '.join([first, '', *rest])} | |")


def run(options: argparse.Namespace, sets: list[str], name: str) -> dict[str, float]:
    """Train one model; return its test error in per cent, training loss and CPU seconds, which are stored."""
    out: Path = options.out / options.size / name
    recipe = load_recipe(options.recipe, sets=sets)

    def measure() -> dict[str, float]:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        folder = train(recipe, out)
        seconds = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
        accuracy = find_score(evaluate_split(load_folder(folder), "test", recipe.decode, lambda _: None), "accuracy")
        assert accuracy is not None
        log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        loss = [line["loss"] for line in log if line["kind"] == "step"][-1]
        return {"error": 100 * (1 - accuracy.value), "loss": loss, "seconds": seconds}

    return cached_result(out, recipe, measure)


if __name__ == "__main__":
    main()
