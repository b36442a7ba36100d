"""Compare the accuracy of mixers on two tasks with the same budget, over several seeds.

    python benchmarks/quality.py --out runs/quality [--task documents] [--mixer window,linear] [--seeds 3] [--jobs 2]

Every run is `allyouneed train` on one core, so a line of the table is what a user would get:

- listops: nested lists by the rules of the Long Range Arena, short enough (20 to 120 tokens) to train in a minute;
- documents: passages of 2,000 characters of State of the Union addresses, to be assigned to one of four eras. Whole
  addresses are held out, by the last digit of their year.

Mixers that have a size read about 32 positions of a list and about 128 of a document. Finished runs are not repeated;
the tables are printed from the stored results.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

# The size of each mixer, for lists and for documents.
MIXERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "softmax": ({}, {}),
    "window": ({"window": 16}, {"window": 64}),
    "local": ({"block": 32}, {"block": 128}),
    "longformer": ({"window": 14, "everywhere": 4}, {"window": 56, "everywhere": 16}),
    "bigbird": ({"block": 6, "random": 1}, {"block": 24, "random": 1}),
    "sparse": ({"stride": 12}, {"stride": 64}),
    "reformer": ({"rounds": 2, "chunk": 8, "buckets": 4}, {"rounds": 2, "chunk": 32, "buckets": 8}),
    "linformer": ({"slots": 32, "max_length": 128}, {"slots": 128, "max_length": 2048}),
    "memory-compressed": ({"stride": 3}, {"stride": 8}),
    "linear": ({}, {}),
    "performer": ({"features": 32}, {"features": 128}),
}
LISTS = ["listops", "--steps", "100", "--set", "train.evaluate_every=1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--task", default="listops,documents", help="comma-separated tasks (default: %(default)s)")
    parser.add_argument("--mixer", default=",".join(MIXERS), help="comma-separated mixers (default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="concurrent runs, one core each (default: %(default)s)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    recipe = document_recipe(options.out)
    cores: Queue[int] = Queue()
    for core in sorted(os.sched_getaffinity(0))[: options.jobs]:
        cores.put(core)
    for task in options.task.split(","):
        command = LISTS if task == "listops" else [str(recipe)]
        names = options.mixer.split(",")
        with ThreadPoolExecutor(options.jobs) as pool:
            results = {
                name: [
                    pool.submit(run, command, name, MIXERS[name][task == "documents"], seed, options.out / task, cores)
                    for seed in range(1, options.seeds + 1)
                ]
                for name in names
            }
            print(
                f"\n| {task} | accuracy | spread | CPU seconds | peak MiB |\n| --- | --- | --- | --- | --- |",
                flush=True,
            )
            for name, waiting in results.items():
                print(line(name, [future.result() for future in waiting]), flush=True)


def run(
    command: list[str], name: str, settings: dict[str, Any], seed: int, folder: Path, cores: "Queue[int]"
) -> dict[str, float]:
    """Train one model in a child process on one core; return its accuracy, CPU seconds and peak resident memory."""
    out = folder / f"{name}-{seed}"
    stored = out.with_suffix(".json")
    if not stored.exists():
        settings = {"type": name, "heads": 4, **settings}
        sets = [f"--set=model.mixer.{key}={value}" for key, value in settings.items()]
        arguments = [*command, *sets, "--seed", str(seed), "--out", str(out)]
        core = cores.get()
        with tempfile.TemporaryFile() as errors:
            child = subprocess.Popen(
                ["taskset", "-c", str(core), sys.executable, "-m", "allyouneed", "train", *arguments],
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
            _, status, usage = os.wait4(child.pid, 0)
            cores.put(core)
            errors.seek(0)
            if status:
                raise SystemExit(f"{name}: {errors.read().decode().strip().splitlines()[-1]}")
        found = {"accuracy": accuracy(out), "seconds": usage.ru_utime + usage.ru_stime, "mib": usage.ru_maxrss / 1024}
        stored.write_text(json.dumps(found))
    result: dict[str, float] = json.loads(stored.read_text())
    return result


def accuracy(folder: Path) -> float:
    """Return the last validation accuracy in the log of a run."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return float([line["accuracy"] for line in lines if "accuracy" in line][-1])


def line(name: str, runs: list[dict[str, float]]) -> str:
    scores = [run["accuracy"] for run in runs]
    spread = f"{min(scores):.3f}-{max(scores):.3f}"
    seconds, mib = (statistics.median(run[key] for run in runs) for key in ("seconds", "mib"))
    return f"| {name} | {statistics.mean(scores):.3f} | {spread} | {seconds:.0f} | {mib:.0f} |"


ERAS = (1850, 1900, 1950, 2100)
PASSAGE = 2000  # characters


def document_recipe(folder: Path) -> Path:
    """Write passages as TSV files, and the recipe that reads them."""
    data = Path(os.environ["ALLYOUNEED_DATA"]) / "lm" / "sotu"
    for split in ("train", "valid"):
        rows = []
        years = [line.split("\t")[0] for line in (data / f"{split}_meta.tsv").read_text(encoding="utf-8").splitlines()]
        for year, text in zip(years, addresses(data / f"{split}.txt"), strict=True):
            era = next(number for number, end in enumerate(ERAS) if int(year) < end)
            rows += [
                f"era{era}\t{text[start : start + PASSAGE]}" for start in range(0, len(text) - PASSAGE + 1, PASSAGE)
            ]
        (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    recipe = folder / "documents.toml"
    recipe.write_text(
        f"""
[task]
type = "classification"
train = "{(folder / "train.tsv").resolve()}"
valid = "{(folder / "valid.tsv").resolve()}"
tokenizer = {{ kind = "bpe", size = 1000 }}
batch_tokens = 8192
max_length = 2048

[model]
type = "encoder"
width = 64
hidden = 128
layers = 2
norm = "pre"
dropout = 0.0
mixer = {{ type = "softmax", heads = 4 }}

[train]
budget = {{ steps = 70 }}
label_smoothing = 0.0
metric = "accuracy"
evaluate_every = 1.0
optimizer = {{ type = "muon", lr = 4e-3, matrix_lr = 0.02 }}
schedule = {{ type = "stable-decay", warmup = 0.05, decay = 0.5 }}
"""
    )
    return recipe


def addresses(path: Path) -> list[str]:
    """Return the text of each address, on one line, without its heading (which contains the year)."""
    found: list[list[str]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("= ") and line.endswith(" ="):
            found.append([])
        elif found:
            found[-1].append(line)
    return [" ".join(" ".join(lines).split()) for lines in found]


if __name__ == "__main__":
    started = time.time()
    main()
    print(f"\n{time.time() - started:.0f} seconds")
