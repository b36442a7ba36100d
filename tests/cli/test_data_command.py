"""`allyouneed data` as a process: output, folders, mistakes, interruptions."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_commands import ENVIRONMENT, HEADS, SMALL, Commands
from test_bad_input import assert_one_line

from allyouneed.storage import new_folder
from waiting import until

WORDS = ("the house is green and very small", "das Haus ist grün und sehr klein")


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    rows = [(f"{WORDS[0]} {number}", f"{WORDS[1]} {number}") for number in range(60)]
    rows += [rows[4], ("", "leer"), rows[5][::-1]]
    for side, name in enumerate(("a.en", "a.de")):
        (tmp_path / name).write_text("".join(f"{row[side]}\n" for row in rows), encoding="utf-8")
    return tmp_path


def test_check_states_each_defect_and_writes_a_page(run: Commands, pairs: Path) -> None:
    done = run("data", "check", "a.en", "a.de", "--held-out", '["a.en", "a.de"]', "--near", "1", folder=pairs)
    assert done.status == 0, done.err
    assert done.out.startswith("a.en and a.de: 63 rows, 63 with defects (100.00 %)")
    assert "held-out: 62 of 62 rows (100.00 %) have a near-copy in the data" in done.out
    done = run("data", "check", "a.en", "a.de", "--out", "report", folder=pairs)
    assert done.status == 0, done.err
    for kind, place in (
        ("duplicate", "line 61: the house"),
        ("empty", "line 62:  | leer"),
        ("swapped", "line 63: das"),
    ):
        assert f"{kind}: " in done.out
        assert f"a.en and a.de: {place}" in done.out
    assert "report: report/report.html" in done.out
    found = [json.loads(line) for line in (pairs / "report" / "defects.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [one["reasons"] for one in found] == [["duplicate"], ["empty"], ["swapped"]]


def test_clean_and_split(run: Commands, pairs: Path) -> None:
    done = run("data", "clean", "a.en", "a.de", "--out", "clean", "--keep", "swapped", folder=pairs)
    assert done.status == 0, done.err
    assert "kept: 61 rows; dropped: 2" in done.out
    assert len((pairs / "clean" / "a.de").read_text(encoding="utf-8").splitlines()) == 61
    done = run("data", "split", "clean/a.en", "clean/a.de", "--out", "s", "--valid", "0.3", "--test", "0", folder=pairs)
    assert done.status == 0, done.err
    assert sorted(path.name for path in (pairs / "s").iterdir()) == ["manifest.json", "train", "valid"]
    again = run(
        "data", "split", "clean/a.en", "clean/a.de", "--out", "s", "--valid", "0.3", "--test", "0", folder=pairs
    )
    assert again.out == done.out  # what this program wrote is replaced
    (pairs / "s" / "manifest.json").unlink()
    done = run("data", "split", "clean/a.en", "clean/a.de", "--out", "s", folder=pairs)
    assert done.status
    assert len(done.err.strip().splitlines()) == 1


def test_only_folders_of_the_command_are_replaced(run: Commands, pairs: Path) -> None:
    with new_folder(pairs / "model") as folder:
        (folder / "model.safetensors").write_text("trained for days")
    for command in ("check", "clean", "split"):
        done = run("data", command, "a.en", "a.de", "--out", "model", folder=pairs)
        assert done.status == 2
        assert done.err.splitlines()[-1].startswith("error: --out model: was not written by `allyouneed data` and")
    assert (pairs / "model" / "model.safetensors").read_text() == "trained for days"
    assert run("data", "clean", "a.en", "a.de", "--out", "clean", folder=pairs).status == 0
    assert run("data", "check", "a.en", "a.de", "--out", "clean", folder=pairs).status == 0
    (pairs / "clean" / "notes.txt").write_text("mine")
    done = run("data", "clean", "a.en", "a.de", "--out", "clean", folder=pairs)
    assert "--out clean: notes.txt was added later and would be lost" in done.err


def test_prepare_shares_its_data_with_runs(run: Commands, pairs: Path) -> None:
    sides = ("a.en", "a.de")
    files = [part for split in ("--train", "--valid") for name in sides for part in (split, name)]
    task = ["--task", "translation", "--model", "encoder-decoder", *files, "--set", "task.tokenizer.kind=words"]
    done = run("data", "prepare", *task, "--processes", "2", folder=pairs)
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert (lines[0], lines[-1]) == ("train: 62 pairs", "data: runs/translation-encoder-decoder/data")
    layers = ["--set", HEADS, "--set", "model.encoder_layers=1", "--set", "model.decoder_layers=1"]
    train = ["train", *task, *SMALL, *layers, "--steps", "1", "--prepared", "runs/translation-encoder-decoder"]
    done = run(*train, "--out", "other", folder=pairs)
    assert done.status == 0, done.err
    names = [
        folder / "data" / "prepared" / "train.source.bin" for folder in map(pairs.joinpath, (lines[-1][6:-5], "other"))
    ]
    assert names[0].samefile(names[1])
    done = run(*train, "--out", "third", "--set", "task.max_length=20", folder=pairs)
    assert_one_line(done, 2, "with other settings: its max_length differ; prepare it with this recipe")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "a.en", "none.de"], "none.de: no such file"),
        (["check", "a.en"], "a.en: line 1: 1 column; should be 2"),
        (["check", '{files=["a.en", "a.de"], weight=2}'], "weight has no effect here"),
        (["check", "a.en", "a.de", "--ratio", "1"], "ratio"),
        (["check", "a.en", "a.de", "--near", "2"], "near"),
        (["clean", "a.en", "a.de"], "Missing option '--out'. (allyouneed data --help)"),
        (["clean", "a.en", "a.de", "--out", "x", "--drop", "emty"], "unknown name 'emty' (did you mean 'empty'?)"),
        (["clean", "a.en", "a.de", "--out", "."], "--out .: holds a.en, which is read; choose another folder"),
        (["split", "a.en", "a.de", "--out", "x", "--valid", "1"], "--valid 1 --test 0.02: should be shares"),
        (["split", "a.en", "a.de", "--out", "x", "--valid", "1e-9"], "is in valid; choose a larger share"),
    ],
)
def test_mistakes_are_one_line(run: Commands, pairs: Path, arguments: list[str], message: str) -> None:
    done = run("data", *arguments, folder=pairs)
    assert done.status == 2
    assert message in done.err
    errors = [line for line in done.err.splitlines() if not line.lstrip()[:1].isdigit()]  # progress begins with a share
    assert len(errors) == 1, done.err
    assert not (pairs / "x").exists()


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    """The input is so large that no machine reads it before the signal: many names of one file."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "0.tsv").write_text(f"{WORDS[0]}\t{WORDS[1]}\n" * 20_000, encoding="utf-8")
    for number in range(1, 1000):
        os.link(tmp_path / "data" / "0.tsv", tmp_path / "data" / f"{number}.tsv")
    command = [sys.executable, "-m", "allyouneed", "data", "clean", "data/*.tsv", "--out", "clean"]
    child = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    try:
        until(lambda: any(tmp_path.glob(".tmp-clean-*")) or child.poll() is not None)
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=300) == 130
    finally:
        child.kill()
        child.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
