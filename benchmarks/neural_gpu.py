"""Measure how the Neural GPU generalises to longer binary numbers than in training, over seeds.

    python benchmarks/neural_gpu.py --out runs/neural-gpu [--seeds 3] [--recipe NAME] [--set key=value ..]

Each seed is a run of `allyouneed train RECIPE --seed k`; finished runs are not repeated. The score is the share of
problems of each length with a completely correct answer, including its end, decoded greedily. For multiplication use
`--recipe neural-gpu-multiplication`. CPU time is that of the whole command.
"""

import argparse
import resource
import subprocess
import sys
import zlib
from pathlib import Path

from results_cache import cached_result

from allyouneed import load
from allyouneed.decode import SearchConfig, translate
from allyouneed.tasks.binary import BinaryTask
from allyouneed.tasks.scores import exact_match
from allyouneed.training import load_recipe

LENGTHS = (5, 10, 20, 30, 40, 60, 80)
BAR = 20  # bits at which every answer should be correct


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: %(default)s)")
    parser.add_argument("--recipe", default="neural-gpu-addition", help="default: %(default)s")
    parser.add_argument("--questions", type=int, default=200, help="problems of each length (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], dest="sets", help="a setting of the recipe")
    options = parser.parse_args()
    rows = [measured(options, seed) for seed in range(1, options.seeds + 1)]
    print(f"\n{options.recipe} {' '.join(options.sets)}: exact match, %, of {options.questions} problems per length\n")
    print("| seed | " + " | ".join(f"{length} bits" for length in LENGTHS) + " | CPU seconds |")
    print("| --- " * (len(LENGTHS) + 2) + "|")
    for seed, row in enumerate(rows, start=1):
        print(f"| {seed} | " + " | ".join(f"{100 * row[str(n)]:.1f}" for n in LENGTHS) + f" | {row['cpu']:.0f} |")
    perfect = sum(row[str(BAR)] == 1 for row in rows)
    print(
        f"\n{perfect} of {len(rows)} seeds: all answers correct at {BAR} bits; {rows[0]['parameters']:,.0f} parameters"
    )


def measured(options: argparse.Namespace, seed: int) -> dict[str, float]:
    """Return exact match by length, and CPU seconds, of one run; the result is stored next to it."""
    settings = f"-{zlib.crc32(' '.join(options.sets).encode()):08x}" if options.sets else ""
    folder = options.out / f"{options.recipe}{settings}-{seed}"
    recipe = load_recipe(options.recipe, {"seed": seed}, options.sets)
    return cached_result(folder, recipe, lambda: measure(options, folder, seed))


def measure(options: argparse.Namespace, folder: Path, seed: int) -> dict[str, float]:
    """Train and evaluate."""
    command = [sys.executable, "-m", "allyouneed", "train", options.recipe, "--seed", str(seed), "--out", str(folder)]
    for one in options.sets:
        command += ["--set", one]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    result = {"cpu": cpu, **by_length(folder, options.recipe, options.questions, seed)}
    print(f"{options.recipe} seed {seed}: {result}", flush=True)
    return result


def by_length(folder: Path, recipe: str, questions: int, seed: int) -> dict[str, float]:
    """Return the exact match of a finished run on new problems of each length."""
    bundle, task = load(folder), load_recipe(recipe).task
    assert isinstance(task, BinaryTask), f"{recipe} is not a recipe of binary arithmetic"
    result: dict[str, float] = {"parameters": bundle.model.parameter_count()}
    for length in LENGTHS:
        longer = task.model_copy(
            update={"lengths": (length, length), "test_lengths": None, "test": questions, "valid": 1}
        )
        pairs = longer.prepare(Path("unused"), 1000 + seed).examples("test")
        answers = translate(bundle.model, bundle.codec, [source for source, _ in pairs], SearchConfig(beam=1))
        result[str(length)] = exact_match([best[0].text for best in answers], [target for _, target in pairs]).value
    return result


if __name__ == "__main__":
    main()
