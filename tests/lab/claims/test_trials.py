"""Claims: the cheap ones are measured for real; measured cells are stored and reused."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from allyouneed.cli import run
from allyouneed.errors import ConfigError, StorageError
from allyouneed.lab.claims import CLAIMS, cells
from allyouneed.lab.claims.base import (
    Measurements,
    outcome,
)
from allyouneed.lab.claims.cells import CellResult, ClaimCell, measure_all, provenance, store_result, stored_result
from allyouneed.lab.claims.small_runs import WORST, adam, classifier_scores, small, train_small
from allyouneed.lab.claims.small_tasks import agent_task
from allyouneed.lab.claims.structure import recurrent_steps
from allyouneed.lab.claims.verdicts import cells_of, chosen, finished, try_claims, write_page
from allyouneed.mixers.recurrent import Recurrent, RnnConfig
from allyouneed.storage import lock
from waiting import PATIENCE

pytestmark = pytest.mark.no_shapes


@pytest.mark.parametrize(("name", "expected"), [("lookup", "confirmed"), ("paths", "confirmed")])
def test_cheap_claims_are_as_documented(name: str, expected: str) -> None:
    claim = CLAIMS[name]
    found = Measurements({arm: [claim.measure(arm, seed, "quick") for seed in (1, 2, 3)] for arm in claim.arms})
    parts = claim.parts(found)
    assert outcome(parts) == expected, parts


def test_the_steps_of_a_recurrence_are_measured() -> None:
    """A cell that ignores its previous state passes nothing on."""
    mixer = RnnConfig().build(16)
    assert isinstance(mixer, Recurrent)
    assert recurrent_steps(mixer, 9, 1) == 8
    for name, weight in mixer.named_parameters():
        if "past" in name:
            weight.data.zero_()
    assert recurrent_steps(mixer, 9, 1) is None


def test_a_recurrence_forgets_and_attention_does_not() -> None:
    claim = CLAIMS["gradients"]
    rnn, softmax = (claim.measure(arm, 1, "quick") for arm in ("rnn", "softmax"))
    assert rnn["lost"] > 5
    assert abs(softmax["lost"]) < 0.5


@pytest.mark.slow
def test_training_with_a_change_of_the_model() -> None:
    """A changed model trains differently: a stack without residuals."""
    one, other = (CLAIMS["depth"].measure(f"{kind} 2", 1, "quick") for kind in ("both", "no residuals"))
    assert one["right"] > 0.9
    assert one["loss"] != other["loss"]
    assert one == CLAIMS["depth"].measure("both 2", 1, "quick")


def test_stored_cells_are_reused(tmp_path: Path) -> None:
    cell = ClaimCell("lookup", "all", 1, "quick")
    assert stored_result(cell, tmp_path) is None
    store_result(CellResult(cell, {"error at 1": 7.0, "odd": math.nan}, 1.5), tmp_path)
    known = stored_result(cell, tmp_path)
    assert known is not None
    assert known.numbers["error at 1"] == 7.0
    assert math.isnan(known.numbers["odd"])
    assert measure_all([cell], tmp_path)[cell].numbers["error at 1"] == 7.0  # a measured error is smaller
    cell.path(tmp_path).write_text('{"allyouneed": "0.0.0"')
    assert stored_result(cell, tmp_path) is None  # broken: measured again
    assert stored_result(ClaimCell("lookup", "all", 1, "full"), tmp_path) is None


def test_cells_of_another_protocol_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = ClaimCell("lookup", "all", 1, "quick")
    store_result(CellResult(cell, {"error at 1": 7.0}, 1.5), tmp_path)
    assert provenance("lookup")["protocol"] != provenance("order")["protocol"]
    for name in ("torch", "protocol"):
        monkeypatch.setattr(cells, "provenance", lambda claim, name=name: provenance(claim) | {name: "another"})
        assert stored_result(cell, tmp_path) is None
    monkeypatch.setattr(cells, "provenance", provenance)
    assert stored_result(cell, tmp_path) is not None


def test_a_second_call_for_one_folder_is_refused(tmp_path: Path) -> None:
    with lock(tmp_path), pytest.raises(StorageError, match="is writing"):
        measure_all([ClaimCell("lookup", "all", 1, "quick")], tmp_path, workers=1)


def test_a_diverged_model_scores_as_chance() -> None:
    trained = train_small(agent_task(1, classes=True), small(type="encoder", layers=1), adam(2), 1)
    assert 0 <= classifier_scores(trained, 0.5)["right"] <= 1
    assert classifier_scores(trained, 0.5)["diverged"] == 0
    for weight in trained.model.parameters():
        weight.data.fill_(math.nan)
    assert classifier_scores(trained, 0.5) == {"right": 0.5, "loss": WORST, "diverged": 1.0}


def test_a_bad_start_is_abandoned() -> None:
    """Bits after one step are no better than chance: with an unreachable threshold, weights are initialised again."""
    task = {"type": "copy-bits", "bits": 2, "lengths": [1, 2], "valid": 5, "test": 5, "batch": 2}
    model = {"type": "ntm", "embedding": "bits", "bits": 2, "slots": 4, "slot_width": 4, "hidden": 8}
    train = {"budget": {"steps": 4}, "optimizer": {"type": "adam", "lr": 1e-9}, "evaluate_every": 0.5}
    weights = [
        torch.cat([weight.flatten() for weight in train_small(task, model, {**train, **more_}, 1).model.parameters()])
        for more_ in ({}, {}, {"restart_above": 1e-3})
    ]
    assert torch.equal(weights[0], weights[1])
    assert (weights[0] - weights[2]).abs().max() > 1e-3


def test_claims_are_measured_judged_and_reported(tmp_path: Path) -> None:
    claims = chosen(["lookup", "scale-gradient"])
    tried = try_claims(claims, tmp_path, seeds=3, effort="quick", workers=1)
    assert [one.result for one in tried] == ["confirmed", "refuted"]  # the mean gradient falls only to a quarter
    page = write_page(tried, tmp_path, seeds=3, effort="quick")
    data = json.loads(page.with_suffix(".json").read_text())
    assert [one["outcome"] for one in data["claims"]] == ["confirmed", "refuted"]
    assert [one["changed"] for one in data["claims"]] == ["", CLAIMS["scale-gradient"].changed]
    assert len(data["claims"][0]["numbers"]["all"]) == 3
    assert data["claims"][0]["command"] == "allyouneed claims lookup --seeds 3 --quick"
    text = page.read_text()
    assert "lookup: confirmed" in text
    assert "| **confirmed** | one-hot weights" in (tmp_path / "quick" / "verdicts.md").read_text()
    assert CLAIMS["lookup"].protocol in text
    assert CLAIMS["scale-gradient"].changed in text
    assert "before they were measured" not in text
    for name in ("lookup", "scale-gradient", "overview"):
        assert (tmp_path / "quick" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert [one.claim.name for one in finished(tmp_path, seeds=3, effort="quick")] == ["lookup", "scale-gradient"]
    assert finished(tmp_path, seeds=4, effort="quick") == []


def test_an_unmeasurable_claim_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLYOUNEED_DATA", str(tmp_path / "nowhere"))
    memory, lookup = try_claims(chosen(["memory", "lookup"])[::-1], tmp_path, seeds=1, effort="quick", workers=1)
    assert memory.result is None
    assert "nowhere" in memory.errors[0]
    assert lookup.result is not None
    page = write_page([memory, lookup], tmp_path, seeds=1, effort="quick")
    assert "memory: not measured" in page.read_text()


def test_a_worker_that_dies_is_an_error_of_its_cell(tmp_path: Path) -> None:
    bad, good = ClaimCell("nonsense", "all", 1, "quick"), ClaimCell("lookup", "all", 1, "quick")
    found = measure_all([bad, good], tmp_path, workers=1)
    assert "process exited" in found[bad].error
    assert found[good].numbers
    assert stored_result(bad, tmp_path) is None


def test_a_worker_stops_with_its_parent() -> None:
    worker = subprocess.Popen([sys.executable, "-m", "allyouneed.lab.claims.cell_process"], stdin=subprocess.PIPE)
    assert worker.stdin is not None
    worker.stdin.close()
    assert worker.wait(timeout=PATIENCE) == 0


def test_shared_measurements_are_made_once() -> None:
    both = chosen(["power-law", "kaplan-exponent"])
    assert cells_of(both, 3, "quick") == cells_of(both[:1], 3, "quick")


def test_bad_names_and_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'heads'"):
        chosen(["head"])
    with pytest.raises(ConfigError, match="--seeds 0"):
        try_claims(chosen(["lookup"]), tmp_path, seeds=0, effort="quick")
    with pytest.raises(ConfigError, match="--workers -1"):
        try_claims(chosen(["lookup"]), tmp_path, seeds=1, effort="quick", workers=-1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lookup", "--all"], "--all tests every claim, but lookup was given too"),
        (["--seeds", "5"], "only listed"),
        (["--workers", "2"], "only listed"),
        (["--out", "somewhere"], "only listed"),
        (["lookup", "--quick", "--workers", "-1"], "--workers -1"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["claims", *arguments]) == 2
    assert message in capsys.readouterr().err
