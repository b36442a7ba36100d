"""Time and peak memory of `allyouneed data check | clean | split` on synthetic pairs with known defects.

    python benchmarks/corpus_defects.py --pairs 1000000

Prints, for each command: seconds, peak memory (MiB), rows with defects. Sentences are drawn from words of two invented
languages; every 50th row has a defect.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def words(alphabet: str, count: int, chooser: random.Random) -> list[str]:
    """Return invented words of a language with its own letters' frequencies."""
    return ["".join(chooser.choices(alphabet, k=chooser.randint(2, 9))) for _ in range(count)]


def write_pairs(folder: Path, pairs: int) -> tuple[Path, Path]:
    """Write pairs of plain text, of which every 50th has a defect."""
    chooser = random.Random(1)
    ours, theirs = words("eeeaaootinshrdlu", 20_000, chooser), words("eeennirsstaudhläöü", 20_000, chooser)
    source, target = folder / "train.xx", folder / "train.yy"
    with source.open("w", encoding="utf-8") as left, target.open("w", encoding="utf-8") as right:
        kept = ("", "")
        for number in range(pairs):
            size = chooser.randint(5, 25)
            pair = (" ".join(chooser.choices(ours, k=size)), " ".join(chooser.choices(theirs, k=size)))
            if number % 50 == 49:
                pair = [pair[::-1], kept, (pair[0], ""), (pair[0], pair[1].replace("ü", "Ã¼") + " Ã¼")][
                    number // 50 % 4
                ]
            else:
                kept = pair
            left.write(pair[0] + "\n")
            right.write(pair[1] + "\n")
    return source, target


def measure(name: str, arguments: list[str]) -> dict[str, float | str]:
    """Run a command; return its time and its peak memory."""
    began = time.monotonic()
    child = subprocess.Popen([sys.executable, "-m", "allyouneed", "data", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, f"{name} failed"
    seconds = time.monotonic() - began
    processor = usage.ru_utime + usage.ru_stime
    return {"command": name, "seconds": seconds, "cpu_seconds": processor, "peak_MiB": usage.ru_maxrss / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, target = map(str, write_pairs(folder, pairs))
        held = [str(folder / f"held.{side}") for side in ("xx", "yy")]
        for file, copy in zip((source, target), held, strict=True):
            with open(file, encoding="utf-8") as lines, open(copy, "w", encoding="utf-8") as out:
                out.writelines(line for _, line in zip(range(2000), lines, strict=False))
        size = sum(Path(file).stat().st_size for file in (source, target))
        print(f"{pairs:,} pairs, {size / 1e6:,.0f} MB")
        runs = {
            "check": ["check", source, target, "--out", str(folder / "checked")],
            "clean --held-out": ["clean", source, target, "--out", str(folder / "c"), "--held-out", json.dumps(held)],
            "split": ["split", source, target, "--out", str(folder / "s")],
        }
        for command, arguments in runs.items():
            print(json.dumps(measure(command, arguments)), flush=True)
        for report in ("checked", "c"):
            found = json.loads((folder / report / "report.json").read_text(encoding="utf-8"))
            print(json.dumps({"report": report, **found["counts"], "clean": found.get("clean", {})}))


if __name__ == "__main__":
    main()
