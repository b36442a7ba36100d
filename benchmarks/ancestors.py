"""What the Transformer replaced, at equal time: each model learns the same task for the same minutes, several times.

    python benchmarks/ancestors.py --out runs/ancestors [--task numbers,multi30k] [--models transformer,bytenet,convs2s]
                                   [--minutes 1] [--cpu] [--seeds 3] [--set decode.beam=1]

Every run is `allyouneed train RECIPE --set train.budget.minutes=N` and `allyouneed evaluate`, on the cores this script
may use, one run at a time, so a line of the table is what a user would get. The Transformer's recipes are the tasks'
own (`numbers-en-de`, `multi30k-en-de`), another model's carry its name before that (`bytenet-numbers-en-de`). A seed
decides weights and batches, and for the number words also which numbers are held out: the same ones for all models.

Minutes are of the wall clock. CPU seconds (training, its evaluations and the final search) stand beside them: on a
machine that others use too, they say whether the minutes were worth the same. With `--cpu` each model instead gets as
many steps as fit into the minutes by its own CPU time of a step, measured first, in turns: fairer on a busy machine.
A run that is finished is not run again.
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
from kept import kept

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
    parser.add_argument("--out", type=Path, required=True, help="where runs are kept")
    parser.add_argument("--task", default=",".join(TASKS), help="of " + ", ".join(TASKS))
    parser.add_argument("--models", default="", help="default: all that have recipes, of " + ", ".join(MODELS))
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 1")
    parser.add_argument("--cpu", action="store_true", help="minutes of CPU time, as steps")
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
    """The models that have a recipe for a task."""
    return [model for model in MODELS if (recipe_folder() / f"{recipe_of(model, task)}.toml").exists()]


def run(recipe: str, budget: str, seed: int, sets: list[str], folder: Path) -> dict[str, float]:
    """Trains and measures one model in processes of their own; what they said, kept beside the run."""
    out = folder / "-".join([recipe, budget.replace("=", "-"), *sets, str(seed)])
    settings = [f"train.budget.{budget}", *sets]

    def make() -> dict[str, float]:
        given = [f"--set={one}" for one in settings]
        _, seconds = command(["train", recipe, *given, "--seed", str(seed), "--out", str(out)])
        said, _ = command(["evaluate", str(out), "--split", "test"])
        return scores(said) | {"cpu": seconds} | last_record(out)

    return kept(out, load_recipe(recipe, {"seed": seed}, settings), make)


def step_seconds(recipes: list[str], sets: list[str], folder: Path) -> dict[str, float]:
    """CPU seconds of one step of each, measured in turns: whoever else is busy slows all of them alike."""
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
                    begun = time.process_time()
                    one.step()
                    times[name].append(time.process_time() - begun)
            for one in runs.values():
                one.close()
        file.write_text(json.dumps({name: statistics.median(times[name][WARMING:]) for name in recipes}))
    result: dict[str, float] = json.loads(file.read_text())
    return result


def command(arguments: Sequence[str]) -> tuple[str, float]:
    """What a command of allyouneed prints, and its CPU seconds."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen([sys.executable, "-m", "allyouneed", *arguments], stdout=said, stderr=errors)
        _, status, usage = os.wait4(child.pid, 0)
        said.seek(0)
        errors.seek(0)
        if status:
            last = (errors.read().decode().strip().splitlines() or ["no message"])[-1]
            raise SystemExit(f"allyouneed {' '.join(arguments)}: {last}")
        return said.read().decode(), usage.ru_utime + usage.ru_stime


def scores(said: str) -> dict[str, float]:
    """The lines `name = value  signature` of an evaluation."""
    pairs = (text.split(" = ", 1) for text in said.splitlines() if " = " in text)
    return {name: float(rest.split()[0]) for name, rest in pairs}


def last_record(out: Path) -> dict[str, float]:
    """Of a run's log: how far it came. And the size of its model."""
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
