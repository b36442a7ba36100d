"""Train on hostile parallel text with the real command line: 27 kinds of plain text, and forged files of other formats.

    python tests/faults/corpora.py [--only KIND] [--big 1073741824] [--changes 300]

Each is accepted with the right number of pairs, or refused in one line that names the file and the line. The exit
status is 0, or 1 to 125; no traceback or raw escape sequence is printed, and memory stays below 1.5 GiB.

Then bytes of Parquet and Arrow files are changed at random (`--changes`). Each file is read to its end, or refused in
one line that names it.
"""

import argparse
import gzip
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyarrow.feather
import pyarrow.parquet

ROOT = Path(__file__).resolve().parents[2]
MOST_MIB = 1536
ROWS = 40
REPEATED = """
import sys, pyarrow, pyarrow.parquet
word = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 10_000, pyarrow.int32()), ["x" * (12 << 20)])
pyarrow.parquet.write_table(pyarrow.table({"source": word, "target": word}), sys.argv[1])
"""  # a word of 12 MiB, 10,000 times
ODD = "x\u2028y\u2029z\u0085w\x0bv\x0cu\x1ct\x1ds\x1er"


@dataclass(frozen=True)
class Kind:
    """A corpus and its expected outcome."""

    source: bytes
    target: bytes
    pairs: int | None = None  # accepted with this number of pairs
    refused: tuple[str, ...] = ()  # refused with all of these parts in the message
    train: str = '["source","target"]'  # the setting


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


def run(folder: Path, train: str) -> tuple[int, int, str]:
    """Run `allyouneed train` in a new process; return its status, memory in MiB and output."""
    for name, lines in (("source.valid", GOOD[:5]), ("target.valid", OTHER[:5])):
        (folder / name).write_bytes(whole(lines))
    sets = [
        *(f"task.train={train}", 'task.valid=["source.valid","target.valid"]', "task.tokenizer.size=300"),
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
        status, mib, output = run(Path(folder), kind.train)
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


def formats(big: int) -> dict[str, tuple[Kind, Callable[[Path], None]]]:
    """Return forged files of other formats, each with its writer."""
    words = whole([b"%s\t%s" % pair for pair in zip(GOOD, OTHER, strict=True)])
    unit = '<tu><tuv xml:lang="en"><seg>one</seg></tuv><tuv xml:lang="de"><seg>eins</seg></tuv></tu>'
    head = '<tmx version="1.4"><header srclang="en"/><body>'
    lol = "".join(f'<!ENTITY l{n + 1} "{f"&l{n};" * 10}">' for n in range(9))

    def put(name: str, content: bytes) -> Callable[[Path], None]:
        return lambda folder: (folder / name).write_bytes(content) and None

    def attribute(folder: Path) -> None:
        with (folder / "x.tmx").open("wb") as file:
            file.write(f'{head}{unit}<tu x="'.encode())
            for _ in range(big >> 20):
                file.write(b"y" * (1 << 20))

    def bomb(folder: Path) -> None:  # of one line that has no end
        with gzip.open(folder / "x.tsv.gz", "wb", compresslevel=1) as file:
            for _ in range(big >> 20):
                file.write(b"0" * (1 << 20))

    def repeated(folder: Path) -> None:
        # In a process of its own: the largest memory of a child starts with that of its parent.
        subprocess.run([sys.executable, "-c", REPEATED, str(folder / "x.parquet")], check=True)

    forged = {
        "TSV": ("x.tsv", 40, (), put("x.tsv", words)),
        "TMX": ("x.tmx", 40, (), put("x.tmx", f"{head}{unit * 40}</body></tmx>".encode())),
        "TMX with an entity bomb": (
            *("x.tmx", None, ("x.tmx: line 1", "document type")),
            put("x.tmx", f'<!DOCTYPE tmx [<!ENTITY l0 "lol">{lol}]>{head}&l9;'.encode()),
        ),
        "TMX with another file": (
            *("x.tmx", None, ("x.tmx: line 1", "document type")),
            put("x.tmx", f'<!DOCTYPE tmx [<!ENTITY x SYSTEM "file:///etc/passwd">]>{head}&x;'.encode()),
        ),
        "TMX with a huge attribute": ("x.tmx", None, ("x.tmx: line 1", "a tag or comment of more"), attribute),
        "TMX of nested elements": ("x.tmx", None, ("elements inside each other",), put("x.tmx", b"<tmx>" * 5_000_000)),
        "gzip bomb": ("x.tsv.gz", None, ("x.tsv.gz: line 1: longer than",), bomb),
        "JSONL nested a million times": ("x.jsonl", None, ("line 1: is nested too",), put("x.jsonl", b"[" * 1_000_000)),
        "Parquet with a repeated word": ("x.parquet", None, ("x.parquet: needs more than 640 MiB",), repeated),
    }
    return {
        name: (Kind(b"", b"", pairs, refused, f'"{file}"'), write)
        for name, (file, pairs, refused, write) in forged.items()
    }


def change_arrow_files(count: int) -> int:
    """Change bytes of Parquet and Arrow files; return how many were not read or refused in one line."""
    from allyouneed.errors import DataError
    from allyouneed.text.corpus_settings import pairs

    choose, wrong, read = random.Random(1), 0, 0
    texts = [f"text {number}" for number in range(500)]
    table = pyarrow.table({"source": texts, "target": texts})
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pyarrow.parquet.write_table(table, folder / "x.parquet", row_group_size=100)
        pyarrow.feather.write_feather(table, folder / "y.feather", compression="zstd")
        with pyarrow.ipc.new_stream(folder / "z.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
        originals = {path.name: path.read_bytes() for path in folder.iterdir()}
        for number in range(count):
            name = sorted(originals)[number % 3]
            raw = bytearray(originals[name])
            for _ in range(choose.choice([1, 1, 4, 16])):
                raw[choose.randrange(len(raw))] = choose.choice([0, 1, 127, 255, choose.randrange(256)])
            (folder / name).write_bytes(raw[: choose.choice([len(raw), len(raw), choose.randrange(len(raw))])])
            try:
                read += sum(1 for _ in pairs([str(folder / name)])) >= 0
            except DataError as error:
                if "\n" in str(error) or not str(error).startswith(str(folder / name)):
                    wrong += 1
                    print(f"WRONG: {error}")
    print(f"{count} changed Parquet and Arrow files: {read} read, {count - read - wrong} refused, {wrong} wrong")
    return wrong


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
    parser.add_argument("--changes", type=int, default=300, help="changed Parquet and Arrow files")
    options = parser.parse_args()
    table = {name: (kind, write_pair(kind)) for name, kind in kinds().items()}
    enormous = Kind(b"", b"", refused=("source: line 1: longer than",))
    table[f"one line of {options.big / 2**30:g} GiB"] = (enormous, write_enormous(options.big))
    table |= formats(options.big)
    wrong, most = 0, 0
    print(f"{'corpus':28}  status  {'MiB':>5}  outcome")
    for name, (kind, write) in table.items():
        if options.only not in (None, name):
            continue
        outcome = run_kind(name, kind, write)
        wrong, most = wrong + (outcome.verdict != "ok"), max(most, outcome.mib)
        print(f"{name:28}  {outcome.status:6}  {outcome.mib:5,}  {summary(kind, outcome)[:170]}", flush=True)
    print(f"{len(table)} kinds, {wrong} wrong, at most {most:,} MiB")
    wrong += change_arrow_files(options.changes) if options.only is None else 0
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
