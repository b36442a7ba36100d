"""`allyouneed claims` in a process."""

import json
from pathlib import Path

import pytest

from allyouneed.lab.claims import CLAIMS

pytestmark = pytest.mark.no_shapes


def test_the_list(run):
    done = run("claims")
    assert done.status == 0
    assert [line.split()[0] for line in done.out.splitlines()] == list(CLAIMS)
    assert "Vaswani" in done.out


def test_one_claim_twice(run, tmp_path: Path):
    arguments = ("claims", "lookup", "--quick", "--seeds", "2", "--workers", "1", "--out", str(tmp_path))
    first = run(*arguments)
    assert first.status == 0, first.err
    assert "lookup  CONFIRMED" in first.out
    assert first.err.count("lookup, all, seed") == 2
    assert json.loads((tmp_path / "quick" / "report.json").read_text())["claims"][0]["outcome"] == "confirmed"
    again = run(*arguments)
    assert again.out == first.out
    assert "2 of 2 measurements kept" in again.err


def test_the_report_of_another_experiment_is_not_replaced(run, tmp_path: Path):
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "report.json").write_text('{"question": "cost"}')
    done = run("claims", "lookup", "--quick", "--out", str(tmp_path))
    assert done.status == 2
    assert "holds the report of 'cost', not of 'claims'" in done.err
    assert [path.name for path in (tmp_path / "quick").iterdir()] == ["report.json"]


def test_mistakes(run, tmp_path: Path):
    for arguments, words in ((["gradient"], "did you mean 'gradients'"), (["lookup", "--seeds", "0"], "--seeds 0")):
        done = run("claims", *arguments, "--out", str(tmp_path))
        assert done.status == 2
        assert words in done.err
        assert not done.out
