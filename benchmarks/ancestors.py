"""Compare the Transformer with its predecessors at equal training time, over several seeds.

    python benchmarks/ancestors.py --out runs/ancestors [--task numbers,multi30k] [--models transformer,bytenet,convs2s]
                                   [--minutes 1] [--cpu] [--seeds 3] [--set decode.beam=1]

Every run is `allyouneed train RECIPE --set train.budget.minutes=N` and `allyouneed evaluate`, on all cores of this
process, one run after another, so a line of the table is what a user would get. The Transformer's recipes are those of
the tasks (`numbers-en-de`, `multi30k-en-de`); other models have a prefix (`bytenet-numbers-en-de`). The seed determines
weights and batches, and for number words also which numbers are held out: the same for all models.

Minutes are wall-clock time. The table also lists CPU seconds (training, evaluations and the final search), which show
whether the minutes were comparable on a shared machine. With `--cpu` each model instead gets as many steps as fit into
the minutes by its CPU time per step, which is measured first, interleaved: fairer on a busy machine. Finished runs are
not repeated.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from results_cache import cached_result

from allyouneed.folder import load_folder
from allyouneed.training import load_recipe, recipe_folder
from allyouneed.training.loop import Run
from allyouneed.training.progress import SilentListener

TASKS = {"numbers": ("numbers-en-de", "exact"), "multi30k": ("multi30k-en-de", "bleu")}
MODELS = ("transformer", "sutskever", "luong", "bahdanau", "bytenet", "convs2s")
CORES = len(os.sched_getaffinity(0))
WARMING, MEASURED = 3, 12  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--task", default=",".join(TASKS), help="comma-separated tasks (default: %(default)s)")
    parser.add_argument(
        "--models", default="", help=f"comma-separated models: {', '.join(MODELS)} (default: all with a recipe)"
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="training time of a run (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: %(default)s)")
    parser.add_argument("--cpu", action="store_true", help="measure --minutes in CPU time, converted to steps")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="a setting for all models")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for task in options.task.split(","):
        if task not in TASKS:
            parser.error(f"unknown task {task!r}; known: {', '.join(TASKS)}")
        name, metric = TASKS[task]
        kind = "CPU minutes" if options.cpu else "minutes"
        how = ", ".join([f"{options.minutes:g} {kind}", f"{CORES} core(s)", f"{options.seeds} seed(s)", *options.sets])
        print(f"\n{name}: {how}\n")
        print(f"| model | parameters | {metric} (range) | loss | steps | target tokens | CPU seconds |")
        print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
        models = options.models.split(",") if options.models else known(name)
        recipes = {model: recipe_of(model, name) for model in models}
        steps = step_seconds(list(recipes.values()), options.sets, options.out) if options.cpu else {}
        for model, recipe in recipes.items():
            budget = f"minutes={options.minutes:g}"
            if options.cpu:
                budget = f"steps={round(60 * CORES * options.minutes / steps[recipe])}"
            runs = [run(recipe, budget, seed, options.sets, options.out) for seed in range(1, options.seeds + 1)]
            print(line(model, metric, runs), flush=True)


def recipe_of(model: str, task: str) -> str:
    return task if model == "transformer" else f"{model}-{task}"


def known(task: str) -> list[str]:
    """Return the models that have a recipe for a task."""
    return [model for model in MODELS if (recipe_folder() / f"{recipe_of(model, task)}.toml").exists()]


def run(recipe: str, budget: str, seed: int, sets: list[str], folder: Path) -> dict[str, float]:
    """Train and evaluate one model in child processes; return the scores, which are stored next to the run."""
    out = folder / "-".join([recipe, budget.replace("=", "-"), *sets, str(seed)])
    settings = [f"train.budget.{budget}", *sets]

    def measure() -> dict[str, float]:
        given = [f"--set={one}" for one in settings]
        _, seconds = command(["train", recipe, *given, "--seed", str(seed), "--out", str(out)])
        printed, _ = command(["evaluate", str(out), "--split", "test"])
        return scores(printed) | {"cpu": seconds} | last_record(out)

    return cached_result(out, load_recipe(recipe, {"seed": seed}, settings), measure)


def step_seconds(recipes: list[str], sets: list[str], folder: Path) -> dict[str, float]:
    """Return the CPU seconds per step of each recipe, measured interleaved, so that load affects all of them alike."""
    file = folder / f"step-seconds-{'-'.join([*recipes, *sets])}.json"
    if not file.exists():
        with tempfile.TemporaryDirectory() as scratch:
            runs = {
                name: Run(load_recipe(name, sets=sets), Path(scratch) / name, SilentListener(), torch.device("cpu"))
                for name in recipes
            }
            times: dict[str, list[float]] = {name: [] for name in recipes}
            for _ in range(WARMING + MEASURED):
                for name, one in runs.items():
                    started = time.process_time()
                    one.step()
                    times[name].append(time.process_time() - started)
            for one in runs.values():
                one.close()
        file.write_text(json.dumps({name: statistics.median(times[name][WARMING:]) for name in recipes}))
    result: dict[str, float] = json.loads(file.read_text())
    return result


def command(arguments: Sequence[str]) -> tuple[str, float]:
    """Run an allyouneed command; return its output and CPU seconds."""
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen([sys.executable, "-m", "allyouneed", *arguments], stdout=printed, stderr=errors)
        _, status, usage = os.wait4(child.pid, 0)
        printed.seek(0)
        errors.seek(0)
        if status:
            last = (errors.read().decode().strip().splitlines() or ["no message"])[-1]
            raise SystemExit(f"allyouneed {' '.join(arguments)}: {last}")
        return printed.read().decode(), usage.ru_utime + usage.ru_stime


def scores(printed: str) -> dict[str, float]:
    """Parse the lines `name = value  signature` of an evaluation."""
    pairs = (text.split(" = ", 1) for text in printed.splitlines() if " = " in text)
    return {name: float(rest.split()[0]) for name, rest in pairs}


def last_record(out: Path) -> dict[str, float]:
    """Return the steps and tokens of a finished run, and the size of its model."""
    records: list[dict[str, Any]] = [json.loads(text) for text in (out / "log.jsonl").read_text().splitlines()]
    parameters = load_folder(out / "model").model.parameter_count()
    return {"steps": records[-1]["steps"], "tokens": records[-1]["tokens"], "parameters": parameters}


def line(model: str, metric: str, runs: list[dict[str, float]]) -> str:
    values = [run[metric] for run in runs]
    mean = {key: statistics.mean(run[key] for run in runs) for key in ("loss", "steps", "tokens", "cpu", "parameters")}
    score = f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
    return (
        f"| {model} | {mean['parameters']:,.0f} | {score} | {mean['loss']:.3f} | {mean['steps']:,.0f} | "
        f"{mean['tokens']:,.0f} | {mean['cpu']:.0f} |"
    )


if __name__ == "__main__":
    main()
