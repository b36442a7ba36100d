"""Train on 27 kinds of hostile parallel text with the real command line.

    python tests/faults/corpora.py [--only KIND] [--big 1073741824]

Each is accepted with the right number of pairs, or refused in one line that names the file and the line. The exit
status is 0, or 1 to 125; no traceback or raw escape sequence is printed, and memory stays below 1.5 GiB.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_MIB = 1536
ROWS = 40
ODD = "x\u2028y\u2029z\u0085w\x0bv\x0cu\x1ct\x1ds\x1er"


@dataclass(frozen=True)
class Kind:
    """A corpus and its expected outcome."""

    source: bytes
    target: bytes
    pairs: int | None = None  # accepted with this number of pairs
    refused: tuple[str, ...] = ()  # refused with all of these parts in the message


def rows(word: str, count: int = ROWS) -> list[bytes]:
    return [f"{word} {number} {word}".encode() for number in range(count)]


GOOD, OTHER = rows("one"), rows("eins")


def whole(lines: list[bytes], end: bytes = b"\n") -> bytes:
    return b"".join(line + end for line in lines)


def with_line(line: bytes, at: int = 17) -> bytes:
    """Return good text with another 18th line."""
    return whole([*GOOD[:at], line, *GOOD[at + 1 :]])


def kinds() -> dict[str, Kind]:
    """Return all corpora except the largest, which is written to disk in parts."""
    target = whole(OTHER)
    return {
        "plain": Kind(whole(GOOD), target, 40),
        "no final newline": Kind(whole(GOOD)[:-1], target, 40),
        "BOM": Kind(b"\xef\xbb\xbf" + whole(GOOD), target, 40),
        "CRLF on one side": Kind(whole(GOOD, b"\r\n"), target, 40),
        "CR only": Kind(whole(GOOD, b"\r"), target, refused=("source: line 1", "CR")),
        "UTF-16": Kind(whole(GOOD).decode().encode("utf-16"), target, refused=("source: line 1", "UTF-16")),
        "Latin-1": Kind(with_line("größer".encode("latin-1")), target, refused=("source: line 18", "byte 3", "0xF6")),
        "one bad UTF-8 line": Kind(with_line(b"one \xff"), target, refused=("source: line 18", "byte 5", "0xFF")),
        "encoded surrogate": Kind(with_line(b"\xed\xa0\x80"), target, refused=("source: line 18", "byte 1")),
        "NUL inside a line": Kind(with_line(b"one\0two"), target, refused=("source: line 18", "byte 4", "NUL")),
        "separators inside a line": Kind(with_line(ODD.encode()), target, 40),
        "empty lines on both sides": Kind(whole([*GOOD[:9], b"", *GOOD[9:]]), whole([*OTHER[:9], b"", *OTHER[9:]]), 40),
        "empty line on one side": Kind(with_line(b""), target, 39),
        "one line too many": Kind(
            whole([*GOOD, b"more"]), target, refused=("source has 41", "target has 40", "line 41")
        ),
        "truncated target": Kind(whole(GOOD), whole(OTHER[:30])[:-3], refused=("source has 40", "has 30", "line 31")),
        "empty source": Kind(b"", target, refused=("source has 0", "target has 40", "line 1")),
        "both empty": Kind(b"", b"", refused=("source", "target", "empty")),
        "a single pair": Kind(b"one\n", b"eins\n", 1),
        "only blanks": Kind(b" \n\t\n" * 20, b"\n \n" * 20, refused=("source", "none of 40 pairs", "empty")),
        # A tokeniser of 300 pieces that was trained on it needs fewer than the 256 ids that a text may have.
        "20,000 combining marks": Kind(with_line(b"e" + "\u0301".encode() * 20_000), target, 40),
        "a 2 MB word": Kind(with_line(b"w" * 2_000_000), target, 39),
        "looks like special tokens": Kind(with_line(b"<pad> </s> < eos > [CLS] <|endoftext|> < pad >"), target, 40),
        "HTML and script": Kind(with_line(b"<script>alert(1)</script> &amp; <!--"), target, 40),
        "terminal escapes": Kind(with_line(b"\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m"[:22]), target, 40),
        "bidi controls": Kind(with_line("\u202eabc \u2066d\u2069 \u200f".encode()), target, 40),
        "astral characters": Kind(with_line("😀 𝔸𝔹 🏳️‍🌈 \U0010ffff".encode()), target, 40),
    }


@dataclass(frozen=True)
class Outcome:
    """The result of a command."""

    status: int
    mib: int
    output: str  # stdout and stderr
    verdict: str  # "ok", or the problem


def run(folder: Path) -> tuple[int, int, str]:
    """Run `allyouneed train` in a new process; return its status, memory in MiB and output."""
    for name, lines in (("source.valid", GOOD[:5]), ("target.valid", OTHER[:5])):
        (folder / name).write_bytes(whole(lines))
    sets = [
        *('task.train=["source","target"]', 'task.valid=["source.valid","target.valid"]', "task.tokenizer.size=300"),
        *("model.width=16", "model.hidden=16", "model.encoder_layers=1", "model.decoder_layers=1"),
        'model.mixer={type="softmax",heads=2}',
    ]
    command = [sys.executable, "-m", "allyouneed", "train", "--task", "translation", "--model", "encoder-decoder"]
    command += ["--steps", "2", "--out", "run", *(part for pair in sets for part in ("--set", pair))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    with (folder / "output").open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return (
        process.returncode,
        usage.ru_maxrss >> 10,
        (folder / "output").read_bytes().decode("utf-8", "surrogateescape"),
    )


def verdict_of(kind: Kind, status: int, mib: int, output: str) -> str:
    """Return "ok", or the problem."""
    if "Traceback" in output or "\x1b" in output or "\u202e" in output:
        return "a traceback, or an escape sequence"
    if mib > MOST_MIB:
        return "too much memory"
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    if kind.pairs is not None:
        if status or errors:
            return "refused"
        found = re.search(r"train: ([\d,]+) pairs", output)
        return "ok" if found and int(found[1].replace(",", "")) == kind.pairs else "the wrong number of pairs"
    if not 1 <= status <= 125 or len(errors) != 1:
        return "not refused in one line"
    missing = [part for part in kind.refused if part not in errors[0]]
    return f"does not mention {missing}" if missing else "ok"


def run_kind(name: str, kind: Kind, write: Callable[[Path], None]) -> Outcome:
    """Train on one corpus in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        status, mib, output = run(Path(folder))
    return Outcome(status, mib, output, verdict_of(kind, status, mib, output))


def write_pair(kind: Kind) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "source").write_bytes(kind.source)
        (folder / "target").write_bytes(kind.target)

    return write


def write_enormous(size: int) -> Callable[[Path], None]:
    """Return a writer of one line of this size, without a newline."""

    def write(folder: Path) -> None:
        (folder / "target").write_bytes(whole(OTHER))
        with (folder / "source").open("wb") as file:
            for _ in range(size >> 20):
                file.write(b"word " * 209_715 + b"w")

    return write


def summary(kind: Kind, outcome: Outcome) -> str:
    """Describe the outcome of a corpus."""
    if kind.pairs is not None:
        return f"accepted, {kind.pairs} pairs" if outcome.verdict == "ok" else f"WRONG: {outcome.verdict}"
    error = next((line for line in outcome.output.splitlines() if line.startswith("error: ")), "no error")
    return ("refused: " if outcome.verdict == "ok" else f"WRONG: {outcome.verdict}: ") + error.removeprefix("error: ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one kind")
    parser.add_argument("--big", type=int, default=1 << 30, help="bytes of the largest line")
    options = parser.parse_args()
    table = {name: (kind, write_pair(kind)) for name, kind in kinds().items()}
    enormous = Kind(b"", b"", refused=("source: line 1: longer than",))
    table[f"one line of {options.big / 2**30:g} GiB"] = (enormous, write_enormous(options.big))
    wrong, most = 0, 0
    print(f"{'corpus':26}  status  {'MiB':>5}  outcome")
    for name, (kind, write) in table.items():
        if options.only not in (None, name):
            continue
        outcome = run_kind(name, kind, write)
        wrong, most = wrong + (outcome.verdict != "ok"), max(most, outcome.mib)
        print(f"{name:26}  {outcome.status:6}  {outcome.mib:5,}  {summary(kind, outcome)[:170]}", flush=True)
    print(f"{len(table)} kinds, {wrong} wrong, at most {most:,} MiB")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
