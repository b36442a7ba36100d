"""Measure how the Neural Turing Machine copies sequences up to six times as long as in training, over seeds.

    python benchmarks/ntm_copy.py --out runs/ntm [--seeds 10] [--rivals lstm-copy] [--rival-seeds 3] [--images DIR]

Each seed is a run of `allyouneed train ntm-copy --seed k`; finished runs are not repeated. The score is the share of
wrong bits in 100 sequences of each length, decoded greedily until the model generates the end. All bits of missing or
surplus vectors are wrong. CPU time is that of the whole command. Rivals are recipes of the same task.
"""

import argparse
import resource
import subprocess
import sys
from pathlib import Path

import matplotlib
import torch
from results_cache import cached_result

from allyouneed import load
from allyouneed.config import parse
from allyouneed.decode import SearchConfig, translate
from allyouneed.inspection.maps import record_maps
from allyouneed.tasks.bits import CopyBitsConfig, bit_errors
from allyouneed.training import load_recipe

matplotlib.use("svg")
import matplotlib.pyplot as plt

LENGTHS = (10, 20, 40, 80, 120)
LIMIT = 0.001  # share of wrong bits at 120 vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds (default: %(default)s)")
    parser.add_argument("--rivals", nargs="*", default=[], help="recipes to compare with")
    parser.add_argument("--rival-seeds", type=int, default=3, help="seeds of each rival (default: %(default)s)")
    parser.add_argument("--images", type=Path, default=Path("docs/images"), help="folder for plots (%(default)s)")
    options = parser.parse_args()
    results = {
        name: [measured(name, seed, options.out) for seed in range(1, seeds + 1)]
        for name, seeds in {"ntm-copy": options.seeds, **dict.fromkeys(options.rivals, options.rival_seeds)}.items()
    }
    for name, rows in results.items():
        print_table(name, rows)
    options.images.mkdir(parents=True, exist_ok=True)
    draw_errors(results, options.images / "ntm-copy.svg")
    draw_weightings(options.out / "ntm-copy-1", options.images / "ntm-weightings.svg")


def measured(name: str, seed: int, out: Path) -> dict[str, float]:
    """Return wrong bits by length, and CPU seconds, of one run; the result is stored next to it."""
    return cached_result(out / f"{name}-{seed}", load_recipe(name, {"seed": seed}), lambda: measure(name, seed, out))


def measure(name: str, seed: int, out: Path) -> dict[str, float]:
    """Train and count wrong bits."""
    folder = out / f"{name}-{seed}"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "allyouneed", "train", name, "--seed", str(seed), "--out", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    bundle = load(folder)
    result = {"cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}
    result["parameters"] = bundle.model.parameter_count()
    for length in LENGTHS:
        settings = {"lengths": [length, length], "test": 100, "valid": 1}
        pairs = parse(CopyBitsConfig, settings).prepare(Path("unused"), 1000 + seed).examples("test")
        answers = translate(bundle.model, bundle.codec, [source for source, _ in pairs], SearchConfig(beam=1))
        result[str(length)] = bit_errors([best[0].text for best in answers], [target for _, target in pairs]).value
    print(f"{name} seed {seed}: {result}", flush=True)
    return result


def print_table(name: str, rows: list[dict[str, float]]) -> None:
    print(f"\n{name}: share of wrong bits\n\n| seed | " + " | ".join(map(str, LENGTHS)) + " | CPU seconds |")
    print("| --- " * (len(LENGTHS) + 2) + "|")
    for seed, row in enumerate(rows, start=1):
        print(f"| {seed} | " + " | ".join(f"{row[str(n)]:.5f}" for n in LENGTHS) + f" | {row['cpu']:.0f} |")
    good = sum(row["20"] == 0 and row["120"] < LIMIT for row in rows)
    print(
        f"\n{good} of {len(rows)}: no wrong bit at 20, below {LIMIT:.1%} at 120; {rows[0]['parameters']:,} parameters"
    )


def draw_errors(results: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Draw a thin line for each seed and a strong one for the median."""
    plt.rcParams["svg.hashsalt"] = "ntm-copy"  # reproducible SVG
    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for (name, rows), colour in zip(results.items(), ("#1b6ca8", "#c44900", "#5f7d3a"), strict=False):
        lines = torch.tensor([[100 * row[str(n)] for n in LENGTHS] for row in rows])
        for line in lines:
            axes.plot(LENGTHS, line, color=colour, alpha=0.3, linewidth=1)
        axes.plot(LENGTHS, lines.median(dim=0).values, color=colour, linewidth=2.2, marker="o", label=name)
    axes.axvspan(0, 20, color="#e6e9ef", zorder=0)
    axes.text(10, 67, "trained", ha="center", fontsize=9)
    axes.set(xlabel="vectors to copy", ylabel="wrong bits, %", xlim=(0, 125), ylim=(-1, 102))
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def draw_weightings(folder: Path, path: Path) -> None:
    """Draw the weightings of the write head and the read head while 20 vectors are copied."""
    bundle = load(folder)
    source, _ = (
        parse(CopyBitsConfig, {"lengths": [20, 20], "valid": 1, "test": 1}).prepare(Path("x"), 7).examples("test")[0]
    )
    with torch.no_grad(), record_maps(bundle.model) as maps:
        state = bundle.model.condition(torch.tensor([bundle.codec.encode_source(source)]))
        bundle.model.hidden(torch.tensor([bundle.codec.encode_prompt(source)]), state)
    reading, writing = torch.cat([one.weights_BHTS[0] for one in maps], dim=1).unbind()
    plt.rcParams["svg.hashsalt"] = "ntm-weightings"
    figure, both = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained", sharey=True)
    shown = bundle.model.config.slots  # type: ignore[attr-defined]
    for axes, weights, title in zip(both, (writing, reading), ("write head", "read head"), strict=True):
        axes.imshow(weights.T[:shown].numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axes.axvline(20.5, color="#c44900", linewidth=1)
        axes.set(title=title, xlabel="step: source, its end | answer")
    both[0].set_ylabel("slot")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
