"""Does back-translation help? As many steps with pairs that are made from texts in the target language as without.

    ALLYOUNEED_DATA=... python benchmarks/back_translation.py --out runs/back [--steps 800]

Pairs of Tatoeba (short sentences, English to German), split by the English sentence: no English sentence of the test is
in any other part, and no German reference of the test is among the other German texts. Of the `--real` pairs both sides
are read, of the `--texts` further ones only the German side, which a model from German to English translates back.

Models from English to German, all with the same settings, seed and number of steps:

    real       the real pairs alone
    back       and the machine-made pairs, found by greedy search
    tagged     the same, with a tag in front of machine-made sources
    sampled    tagged, but the sources are samples
    all real   the English sides as well: what better sources would give at most

Every model is a run of `allyouneed train`. Finished ones are not repeated. Prints BLEU and chrF on the test, and writes
them to OUT/results.json.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from allyouneed.evaluation.measure import evaluate_files
from allyouneed.evaluation.settings import recipe_of
from allyouneed.pipeline import load

FILE = Path(os.environ.get("ALLYOUNEED_DATA", "")) / "translation" / "tatoeba" / "tatoeba_short.en-de.tsv"
TEST, VALID = 1000, 300  # pairs
SETTINGS = [
    "model.width=64",
    "model.hidden=128",
    "model.encoder_layers=2",
    "model.decoder_layers=2",
    "task.tokenizer.size=2000",
    "train.accumulate=1",
    "train.evaluate_every=0.2",
]
Pair = tuple[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--real", type=int, default=5000)
    parser.add_argument("--texts", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    out: Path = given.out
    out.mkdir(parents=True, exist_ok=True)
    write_parts(out, given.real, given.texts)
    results: dict[str, Any] = {"command": " ".join(["python", *sys.argv]), "models": {}}
    common = ["--steps", str(given.steps), "--seed", str(given.seed)]
    train(out, "reverse", [f"--train={out}/real.de", f"--train={out}/real.en"], common, ("de", "en"))
    results["models"]["reverse"] = scores(out, "reverse", ("de", "en"))
    made = {"greedy": ["--beam", "1"], "samples": ["--sample"]}
    for name, how in made.items():
        folder = out / f"back-{name}"
        allyouneed("data", "back-translate", str(out / "reverse"), str(out / "texts.de"), "--out", str(folder), *how)
        counts = json.loads((folder / "back-translation.json").read_text(encoding="utf-8"))["finished"]
        results[name] = {"pairs": counts["pairs"], "dropped": counts["reasons"]}
    real = [str(out / "real.en"), str(out / "real.de")]
    for model, corpora in (
        ("real", [{"files": real}]),
        ("back", [{"files": real}, made_pairs(out, "greedy")]),
        ("tagged", [{"files": real}, made_pairs(out, "greedy") | {"tag": "<BT>"}]),
        ("sampled", [{"files": real}, made_pairs(out, "samples") | {"tag": "<BT>"}]),
        ("all real", [{"files": real}, {"files": [str(out / "texts.en"), str(out / "texts.de")]}]),
    ):
        train(out, model, [f"--train={as_toml(corpora)}"], common, ("en", "de"))
        results["models"][model] = scores(out, model, ("en", "de"))
    spent = resource.getrusage(resource.RUSAGE_CHILDREN), resource.getrusage(resource.RUSAGE_SELF)
    results["cpu_seconds"] = round(sum(one.ru_utime + one.ru_stime for one in spent))
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"{results['cpu_seconds']} CPU-seconds")


def write_parts(out: Path, real: int, texts: int) -> None:
    """Write the parts of the data as parallel files, unless they are there."""
    if (out / "texts.de").exists():
        return
    rows = [tuple(line.split("\t")[:2]) for line in FILE.read_text(encoding="utf-8").splitlines()]
    groups = [list(group) for _, group in groupby(sorted(set(rows)), key=lambda row: row[0])]
    random.Random(1).shuffle(groups)
    parts: dict[str, list[Pair]] = {"test": [], "valid": [], "real": [], "texts": []}
    sizes = {"test": TEST, "valid": VALID, "real": real, "texts": texts}
    names, known = iter(sizes), set[str]()
    name = next(names)
    for group in groups:
        if len(parts[name]) >= sizes[name]:
            following = next(names, None)
            if following is None:
                break
            name = following
        if name == "test":
            known |= {german for _, german in group}
        kept = [(english, german) for english, german in group if name == "test" or german not in known]
        parts[name] += kept[:1] if name in ("test", "valid") else kept
    for part, pairs in parts.items():
        for side, end in enumerate(("en", "de")):
            (out / f"{part}.{end}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")


def made_pairs(out: Path, name: str) -> dict[str, Any]:
    return {"files": [str(out / f"back-{name}" / f"back.{end}") for end in ("en", "de")]}


def as_toml(corpora: list[dict[str, Any]]) -> str:
    """Return corpora as --train takes them."""
    tables = [", ".join(f"{name} = {json.dumps(value)}" for name, value in one.items()) for one in corpora]
    return f"[{', '.join(f'{{{table}}}' for table in tables)}]"


def train(out: Path, name: str, data: list[str], common: list[str], sides: Pair) -> None:
    """Train a run, unless it is finished."""
    run = out / name.replace(" ", "-")
    if not (run / "model").exists():
        valid = [f"--valid={out}/valid.{end}" for end in sides]
        sets = [flag for one in SETTINGS for flag in ("--set", one)]
        allyouneed("train", "translation", *data, *valid, *common, *sets, "--out", str(run))


def scores(out: Path, name: str, sides: Pair) -> dict[str, float]:
    """Print and return the scores of a model on the test, with the search of the recipe."""
    bundle = load(out / name.replace(" ", "-"))
    files = [str(out / f"test.{end}") for end in sides]
    found = evaluate_files(bundle, files, recipe_of(bundle).decode, lambda _: None)
    kept = {one.name: round(one.value, 2) for one in found if one.name in ("bleu", "chrf")}
    print(f"{name:10}  BLEU {kept['bleu']:5.2f}  chrF {kept['chrf']:5.2f}", flush=True)
    return kept


def allyouneed(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "allyouneed", *arguments], check=True)


if __name__ == "__main__":
    main()
