"""Train a recipe in float32 and in bfloat16, in turns: tokens per CPU-second, and the losses at equal tokens.

    taskset -c 1 python benchmarks/precision.py shakespeare-char --steps 300 --rounds 15

Both runs have the same seed, so the same initial weights, batches and dropout masks. They are in one process with one
thread and take turns of a few steps; a turn's ratio is that of adjacent measurements. Everything in a step counts,
data and optimizer too.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from allyouneed.training import load_recipe
from allyouneed.training.loop import Run
from allyouneed.training.progress import SilentListener

ARMS = ("float32", "bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", help="a recipe: a file or a built-in name")
    parser.add_argument("--steps", type=int, default=200, help="the budget of each run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each run (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], help="another setting, e.g. train.optimizer=adamw")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = {arm: start(options, arm, Path(folder) / arm) for arm in ARMS}
        compare(runs, options)


def start(options: argparse.Namespace, precision: str, folder: Path) -> Run:
    settings = [f"train.budget={{steps={options.steps}}}", f"train.precision={precision}", "train.log_every=1000000"]
    recipe = load_recipe(options.recipe, sets=[*options.set, *settings])
    folder.mkdir()
    return Run(recipe, folder, SilentListener(), torch.device("cpu"), cores=1)


def compare(runs: dict[str, Run], options: argparse.Namespace) -> None:
    """Run all steps of all runs in turns and print the tables."""
    speeds: dict[str, list[float]] = {arm: [] for arm in runs}
    print(f"{'step':>6} {'loss, float32':>14} {'bfloat16':>10} {'difference':>11}")
    for number in range(options.rounds):
        losses = []
        for arm, run in runs.items():
            speed, loss = turn(run, options.steps // options.rounds)
            losses.append(loss)
            if number:  # the first turn is warm-up
                speeds[arm].append(speed)
        wide, half = losses
        print(
            f"{runs[ARMS[0]].progress.spent.steps:>6} {wide:>14.4f} {half:>10.4f} {half / wide - 1:>+11.3%}", flush=True
        )
    wide, half = (held_out(run) for run in runs.values())
    print(f"{'held':>6} {wide:>14.4f} {half:>10.4f} {half / wide - 1:>+11.3%}")
    for arm in runs:
        print(f"{arm:9} {spread(speeds[arm], 0)} tokens per CPU-second")
    ratios = [half / wide for wide, half in zip(*speeds.values(), strict=True)]
    print(f"ratio     {spread(ratios, 2)}")
    compare_optimizers(runs)


def compare_optimizers(runs: dict[str, Run]) -> None:
    """Time updates of nothing (a learning rate of 0) with random gradients, in turns."""
    times: dict[str, list[float]] = {arm: [] for arm in runs}
    for run in runs.values():
        for _, parameter in run.state.parallelism.named_parameters():
            parameter.grad = 1e-3 * torch.randn_like(parameter)
    for number in range(10):
        for arm, run in runs.items():
            before = time.process_time()
            run.state.optimizers.step(0.0, run.workers)
            if number:
                times[arm].append(1e3 * (time.process_time() - before))
    for arm in runs:
        print(f"{arm:9} {spread(times[arm], 1)} ms in the optimizer")
    ratios = [wide / half for wide, half in zip(*times.values(), strict=True)]
    print(f"ratio     {spread(ratios, 2)}")


def turn(run: Run, steps: int) -> tuple[float, float]:
    """Make some steps; return tokens per CPU-second and the mean loss."""
    before, tokens = time.process_time(), run.progress.spent.tokens
    run.progress.losses = []
    for _ in range(steps):
        run.step()
    losses = run.progress.losses
    return (run.progress.spent.tokens - tokens) / (time.process_time() - before), sum(losses) / len(losses)


def held_out(run: Run) -> float:
    """Return the loss of the (averaged) weights on the validation split."""
    with run.state.averaged(), run.workers.at_rest():
        found = run.validator.evaluate(lambda: False)
    assert found is not None
    (loss,) = [score.value for score in found.scores if score.name == "loss"]
    return loss


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):>8.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    main()
