"""Interrupt the preparation of a corpus, and measure how soon it ends and what the next attempt repeats.

    python tests/faults/prepare.py --signals 5 --kills 10

Signals: `allyouneed train` receives SIGINT or SIGTERM at a random moment of training a unigram tokeniser on Multi30k.
It must end within 2 seconds, with status 130 and one line. Kills: a process that prepares a corpus of 400,000 pairs (in
seven parts) receives SIGKILL at random moments. In the end the prepared data must equal that of an undisturbed process
byte for byte, with nothing left beside it.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from allyouneed.storage import read_manifest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
SECONDS = 2.0
PREPARE = """
import sys
from pathlib import Path
from allyouneed.tasks.translation import TranslationConfig
files = {"train": ["train.en", "train.de"], "valid": ["valid.en", "valid.de"]}
TranslationConfig(**files, tokenizer={"kind": "bpe", "size": 2000}).prepare(Path(sys.argv[1]), 1)
"""


def signals(folder: Path, count: int, choose: random.Random) -> bool:
    """Return whether every signal ended a run in time."""
    slowest, fine = 0.0, True
    command = [sys.executable, "-m", "allyouneed", "train", "multi30k-en-de", "--set", "task.tokenizer.kind=unigram"]
    for attempt in range(count):
        number = choose.choice([signal.SIGINT, signal.SIGTERM])
        out = folder / f"signal-{attempt}"
        run = subprocess.Popen([*command, "--out", str(out)], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        while not (out / "data" / "preparing").exists() and run.poll() is None:
            time.sleep(0.01)
        time.sleep(choose.uniform(0, 8))
        began = time.monotonic()
        run.send_signal(number)
        _, errors = run.communicate()
        slowest = max(slowest, time.monotonic() - began)
        right = run.returncode == 130 and errors.splitlines()[-1].startswith("error: stopped")  # or in the first steps
        fine &= right
        if not right:
            print(f"{number.name}: status {run.returncode}: {errors}")
    print(f"signals: {count}, the slowest ended after {slowest:.2f} s (limit {SECONDS:g} s)")
    return fine and slowest <= SECONDS


def kills(folder: Path, count: int, choose: random.Random) -> bool:
    """Return whether preparation after kills equals an undisturbed one."""
    words = [f"word{number}" for number in range(3000)]
    for name in ("train.en", "train.de", "valid.en", "valid.de"):
        lines = 400_000 if name.startswith("train") else 20
        text = "".join(" ".join(choose.choices(words, k=6)) + "\n" for _ in range(lines))
        (folder / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", PREPARE]
    began = time.monotonic()
    subprocess.run([*command, "whole"], cwd=folder, env=ENVIRONMENT, check=True)
    whole = time.monotonic() - began
    stages = 0
    for _ in range(count):
        process = subprocess.Popen([*command, "killed"], cwd=folder, env=ENVIRONMENT)
        time.sleep(choose.uniform(0.1, 0.6) * whole)
        process.kill()
        process.wait()
        stages = max(stages, len(list((folder / "killed").glob("preparing/*/result.json"))))
        if (folder / "killed" / "prepared").exists():
            break
    subprocess.run([*command, "killed"], cwd=folder, env=ENVIRONMENT, check=True)
    same = read_manifest(folder / "whole" / "prepared") == read_manifest(folder / "killed" / "prepared")
    left = sorted(path.name for path in (folder / "killed").iterdir())
    outcome = "the same bytes" if same else "other bytes"
    print(f"kills: up to {count}, {stages} stages survived; {outcome}; left: {', '.join(left)}")
    return same and left == ["prepared"]


def main() -> int:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--signals", type=int, default=5)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    choose = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        fine = signals(folder, arguments.signals, choose) if arguments.signals else True
        fine &= kills(folder, arguments.kills, choose) if arguments.kills else True
    print("fine" if fine else "FAILED")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
