"""Measure translation quality by source length, with and without attention (Bahdanau et al. 2014, figure 2).

    python benchmarks/length.py --out runs/length [--seeds 3] [--scale 1] [--picture FILE.svg]

Number words of 1 to 15 digits, English to French, word by word. Training has equally many numbers of each length; the
test has 200 unseen ones of each (from 3 digits on: there are too few shorter ones to hold some out). All arms train on
the same pairs with the same optimiser, with `allyouneed train`, for about equal CPU time: those without attention are
faster and see twice as many tokens. The test is decoded with greedy search.

- none: an LSTM encoder whose last state initialises an LSTM decoder (Cho et al. 2014, with the later cell);
- reversed: the same with two layers and the source reversed, which Sutskever et al. (2014) found to help;
- bahdanau: a bidirectional GRU encoder, and additive attention before every step (Bahdanau et al. 2014), with about as
  many parameters.

Finished runs are not repeated; table and picture are made from the stored results.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from results_cache import cached_result

from allyouneed.training import load_recipe

ARMS: dict[str, dict[str, Any]] = {
    "none": {"cell": "lstm", "attention": "none", "width": 160, "embedding": 96},
    "reversed": {"cell": "lstm", "attention": "none", "width": 112, "embedding": 96, "layers": 2, "reverse": True},
    "bahdanau": {"cell": "gru", "attention": "bahdanau", "width": 112, "embedding": 96},
}
LABELS = {
    "none": "no attention (LSTM)",
    "reversed": "no attention, 2 layers, source reversed (LSTM)",
    "bahdanau": "Bahdanau attention (GRU)",
}
TOKENS = {
    "none": 1_000_000,
    "reversed": 1_000_000,
    "bahdanau": 500_000,
}  # of targets; a little more than a CPU-minute each
DIGITS = range(1, 16)
TESTED = range(3, 16)  # digits
TRAIN, VALID, TEST = 4000, 30, 200  # numbers of each length, at most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for data and runs")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the token budget (default: %(default)s)")
    parser.add_argument("--picture", type=Path, help="SVG file for the plot; not drawn by default")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write_data(options.out)
    found = {
        arm: [run(arm, seed, int(options.scale * TOKENS[arm]), options.out) for seed in range(1, options.seeds + 1)]
        for arm in ARMS
    }
    report(found)
    if options.picture is not None:
        draw(found, options.picture)


def write_data(folder: Path) -> None:
    """Write pairs of number words as TSV files, the same for every run."""
    from allyouneed.tasks.numbers import number_words

    if (folder / "test.tsv").exists():
        return
    rows: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    dice = random.Random(1)
    for digits in DIGITS:
        first, end = (0 if digits == 1 else 10 ** (digits - 1)), 10**digits
        held_out = VALID + TEST if digits in TESTED else 0
        count = min(end - first, TRAIN + held_out)
        numbers = dice.sample(range(first, end), count)
        lines = [f"{number_words(number, 'en')}\t{number_words(number, 'fr')}" for number in numbers]
        rows["test"] += lines[:TEST] if held_out else []
        rows["valid"] += lines[TEST:held_out]
        train = lines[held_out:]
        rows["train"] += [train[i % len(train)] for i in range(TRAIN)]  # repeat short ones, for equal shares
    for split in ("train", "valid", "test"):  # test last: its presence means that all files are complete
        (folder / f"{split}.tsv").write_text("\n".join(rows[split]) + "\n", encoding="utf-8")


def recipe(folder: Path) -> Path:
    path = folder / "length.toml"
    files = "\n".join(f'{split} = "{(folder / split).resolve()}.tsv"' for split in ("train", "valid"))
    path.write_text(
        f"""
[task]
type = "translation"
{files}
tokenizer = {{ kind = "words" }}
shared = false
batch_tokens = 1536

[model]
type = "seq2seq"

[train]
label_smoothing = 0.0
evaluate_every = 1.0
optimizer = {{ type = "adam", lr = 4e-3 }}
schedule = {{ type = "linear", warmup = 0.05 }}
budget = {{ tokens = 1000 }}
""",
        encoding="utf-8",
    )
    return path


def run(arm: str, seed: int, tokens: int, folder: Path) -> dict[str, Any]:
    """Train one model in a child process; return exact match by number of digits, parameters and CPU seconds."""
    out = folder / f"{arm}-{seed}"
    sets = [*(f"model.{key}={value}" for key, value in ARMS[arm].items()), f"train.budget.tokens={tokens}"]

    def measure() -> dict[str, Any]:
        given = [f"--set={one}" for one in sets]
        command = [sys.executable, "-m", "allyouneed", "train", str(recipe(folder)), *given, "--seed", str(seed)]
        child = subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            raise SystemExit(f"{arm}: training failed; see its message above")
        found = {**examine(out, folder), "tokens": tokens}
        return {**found, "seconds": usage.ru_utime + usage.ru_stime}

    return cached_result(out, load_recipe(str(recipe(folder)), {"seed": seed}, sets), measure)


def examine(out: Path, folder: Path) -> dict[str, Any]:
    """Return the exact match of a trained model by number of digits."""
    from allyouneed import load
    from allyouneed.decode import SearchConfig, translate

    bundle = load(str(out))
    rows = [line.split("\t") for line in (folder / "test.tsv").read_text(encoding="utf-8").splitlines()]
    answers = translate(bundle.model, bundle.codec, [source for source, _ in rows], SearchConfig(beam=1))
    correct = [best[0].text.strip() == target for best, (_, target) in zip(answers, rows, strict=True)]
    assert len(correct) == TEST * len(TESTED)
    shares = [statistics.mean(correct[i * TEST : (i + 1) * TEST]) for i in range(len(TESTED))]
    words = [
        statistics.mean(len(source.replace("-", " - ").split()) for source, _ in rows[i * TEST : (i + 1) * TEST])
        for i in range(len(TESTED))
    ]
    return {"exact": shares, "words": words, "parameters": bundle.model.parameter_count()}


def report(found: dict[str, list[dict[str, Any]]]) -> None:
    words = found["none"][0]["words"]
    print(f"exact match on {TEST} unseen numbers of each length; mean (lowest-highest) of the seeds\n")
    print("| digits (mean source tokens) | " + " | ".join(LABELS[arm] for arm in found) + " |")
    print("| --- |" + " --- |" * len(found))
    for place, digits in enumerate(TESTED):
        cells = []
        for runs in found.values():
            scores = [run["exact"][place] for run in runs]
            cells.append(f"{statistics.mean(scores):.3f} ({min(scores):.3f}-{max(scores):.3f})")
        print(f"| {digits} ({words[place]:.1f}) | " + " | ".join(cells) + " |")
    print("| parameters | " + " | ".join(f"{runs[0]['parameters']:,}" for runs in found.values()) + " |")
    print("| target tokens seen | " + " | ".join(f"{runs[0]['tokens']:,}" for runs in found.values()) + " |")
    seconds = (statistics.median(run["seconds"] for run in runs) for runs in found.values())
    print("| CPU seconds of a run (median) | " + " | ".join(f"{value:.0f}" for value in seconds) + " |")


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw the mean of each arm, and a thin line for each seed."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "length"  # reproducible SVG
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    words = found["none"][0]["words"]
    for (arm, runs), colour in zip(found.items(), ("tab:orange", "tab:olive", "tab:blue"), strict=True):
        for one in runs:
            axes.plot(words, one["exact"], color=colour, alpha=0.3, linewidth=0.8)
        means = [statistics.mean(one["exact"][place] for one in runs) for place in range(len(TESTED))]
        axes.plot(words, means, color=colour, marker="o", label=LABELS[arm])
    for place, digits in enumerate(TESTED):
        axes.text(words[place], -0.13, str(digits), ha="center")
    axes.text(words[0] - 0.7, -0.13, "digits", ha="right")
    axes.set(xlabel="tokens of the source (mean)", ylabel="exact match", xlim=(2, 31), ylim=(-0.2, 1.05))
    axes.set_title("English number words to French, unseen numbers")
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 0.14), frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    started = time.time()
    main()
    print(f"\n{time.time() - started:.0f} seconds")
