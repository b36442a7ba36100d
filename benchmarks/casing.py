"""What copies of training pairs in capitals and in title case buy (task.casing), and what they cost on ordinary text.

    ALLYOUNEED_DATA=... taskset -c 1 python benchmarks/casing.py --out runs/casing [--shares 0,0.05] [--steps 480]
        [--seeds 1]

Trains the recipe multi30k-en-de with each share (task.casing.upper and task.casing.title) for the same number of steps,
and translates the test set as it is, in capitals, and with all words of the source in title case. BLEU (sacrebleu,
13a): in capitals against references in capitals; of title case against the references as they are, without case.
"only capitals": the percentage of outputs for capitals without a small letter. "tokens": the mean length of a source.

Every run is `allyouneed train`. Finished runs are not repeated, and unfinished ones are resumed. The numbers are
written to OUT/results.json after each model.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import allyouneed

DATA = Path(os.environ.get("ALLYOUNEED_DATA", "")) / "translation" / "multi30k"
EXAMPLE = "two dogs play in the snow"
COLUMNS = ("as it is", "capitals", "only capitals", "title case", "tokens", "tokens, capitals", "tokens, title case")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shares", default="0,0.05")
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--seeds", default="1")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"command": " ".join(["python", *sys.argv]), "models": {}}
    print("| share, seed |", " | ".join(COLUMNS), "|")
    for seed in map(int, given.seeds.split(",")):
        for share in map(float, given.shares.split(",")):
            name = f"{share:g}, {seed}"
            results["models"][name] = found = measure(train(given.out, share, seed, given.steps))
            print(f"| {name} |", " | ".join(f"{found[column]:.1f}" for column in COLUMNS), "|", flush=True)
            print("\n".join(f"    {source} -> {target}" for source, target in found["examples"].items()), flush=True)
            (given.out / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def train(out: Path, share: float, seed: int, steps: int) -> Path:
    """Train with a share of copies of each kind, unless it is done; return the run."""
    run = out / f"share{share:g}-seed{seed}-steps{steps}"
    if not (run / "model").exists():
        sets = [f"task.casing={{upper={share}, title={share}}}", f"seed={seed}", "train.evaluate_every=0.5"]
        flags = [flag for one in sets for flag in ("--set", one)]
        command = ["train", "multi30k-en-de", "--steps", str(steps), "--out", str(run), *flags]
        subprocess.run([sys.executable, "-m", "allyouneed", *command], check=True)
    return run


def measure(run: Path) -> dict[str, Any]:
    """Return BLEU of the test set in three cases, and the lengths of its sources."""
    from sacrebleu.metrics.bleu import BLEU

    pipeline = allyouneed.load(run)
    sources, references = (lines(DATA / f"test_2016_flickr.{language}") for language in ("en", "de"))
    capitals, titles = [text.upper() for text in sources], [title(text) for text in sources]
    plain, upper, titled = (pipeline.translate(texts) for texts in (sources, capitals, titles))
    encode = pipeline.codec.encode_sources
    lengths = [sum(map(len, encode(texts))) / len(texts) for texts in (sources, capitals, titles)]
    cased, uncased = BLEU(), BLEU(lowercase=True)
    scores = (
        cased.corpus_score(plain, [references]).score,
        cased.corpus_score(upper, [[text.upper() for text in references]]).score,
        100 * sum(text == text.upper() for text in upper) / len(upper),
        uncased.corpus_score(titled, [references]).score,
    )
    shown = (EXAMPLE, EXAMPLE.upper(), EXAMPLE.title())
    examples = dict(zip(shown, pipeline.translate(list(shown)), strict=True))
    return dict(zip(COLUMNS, (*scores, *lengths), strict=True)) | {"examples": examples}


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def title(text: str) -> str:
    """Return a text whose words all begin with capitals. `str.title` would write Don'T."""
    return re.sub(r"(?<![\w'])[a-z]", lambda found: found[0].upper(), text)


if __name__ == "__main__":
    main()
