"""Claims: every rule can come out all three ways; the cheap ones are tried for real; what was measured is kept."""

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from allyouneed.cli import run
from allyouneed.errors import ConfigError, StorageError
from allyouneed.lab.charts import Chart, svg
from allyouneed.lab.claims import CLAIMS, work
from allyouneed.lab.claims.base import (
    Claim,
    Found,
    Part,
    alike,
    at_least,
    at_most,
    by_definition,
    corrected,
    given,
    more,
    outcome,
)
from allyouneed.lab.claims.sentences import who_did_it
from allyouneed.lab.claims.structure import NEVER, formula, recurrent_steps
from allyouneed.lab.claims.trial import WORST, adam, answers, learn, small
from allyouneed.lab.claims.verdicts import cells_of, chosen, finished, try_claims, write_page
from allyouneed.lab.claims.work import Cell, Measured, keep, kept, made_with, measure_all
from allyouneed.mixers.recurrent import Recurrent, RnnConfig
from allyouneed.storage import lock

pytestmark = pytest.mark.no_shapes
NOISE = (-1.0, 0.3, 0.7)  # of three seeds


def around(mean: float, spread: float = 0.01) -> list[float]:
    return [mean + spread * noise for noise in NOISE]


# --- what rules are made of ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mean", "expected"), [(1.0, "confirmed"), (-1.0, "refuted"), (0.001, "not shown")])
def test_a_difference_counts_only_if_it_is_shown(mean: float, expected: str) -> None:
    assert more("more", around(mean), [0.0] * 3).result == expected
    assert at_least("above", around(mean), 0.0).result == expected
    assert at_most("below", around(-mean), 0.0).result == expected


def test_the_margin_is_part_of_the_rule() -> None:
    assert more("more", around(1.0), around(0.8), 0.1).result == "confirmed"
    assert more("more", around(1.0), around(0.8), 0.3).result == "refuted"


def test_alike_is_more_than_no_difference_shown() -> None:
    assert alike("a tie", around(1.0), [1.0] * 3, 0.1).result == "confirmed"
    assert alike("a tie", around(1.2), [1.0] * 3, 0.1).result == "refuted"
    assert alike("a tie", around(0.8), [1.0] * 3, 0.1).result == "refuted"
    assert alike("a tie", around(1.0, 0.5), [1.0] * 3, 0.1).result == "not shown"


def test_one_seed_shows_nothing() -> None:
    assert more("more", [2.0], [1.0]).result == "not shown"
    assert alike("a tie", [1.0], [1.0], 0.5).result == "not shown"


def test_one_refuted_part_refutes_the_whole() -> None:
    yes, no, open_ = (Part("", result, "") for result in ("confirmed", "refuted", "not shown"))
    assert outcome([yes, yes]) == "confirmed"
    assert outcome([yes, open_]) == "not shown"
    assert outcome([yes, open_, no]) == "refuted"


def test_a_part_refuted_by_one_test_of_many_is_not_shown() -> None:
    wrong, right = Part("wrong", "refuted", "", 0.02), Part("right", "confirmed", "", 0.001)
    assert outcome(corrected([wrong, right])) == "refuted"  # 0.02 * 2 < 0.05
    assert outcome(corrected([wrong, right, right])) == "not shown"
    assert outcome(corrected([wrong, *map(by_definition, [right, right, right])])) == "refuted"  # these are no tests
    exact = Part("counted", "refuted", "")
    assert outcome(corrected([exact, *[right] * 20])) == "refuted"
    late = Part("late", "confirmed", "", 0.04)
    assert outcome(corrected([late] * 20)) == "confirmed"  # all have to hold: nothing to correct


def test_what_the_experiment_needs_decides_only_whether_it_speaks() -> None:
    no, yes = Part("", "refuted", "", 0.001), Part("", "confirmed", "", 0.001)
    assert outcome(given([yes, yes], [no])) == "refuted"
    assert outcome(given([yes, no], [no])) == outcome(given([yes, no], [yes])) == "not shown"
    assert outcome([by_definition(no), yes]) == "confirmed"


# --- the rule of every claim -----------------------------------------------------------------------------------------

Maker = Callable[[str, str, float], float]  # arm, name and noise of a number -> the number


def by(table: dict[str, float], other: float = 0.0, spread: float = 1e-9) -> Maker:
    """The first key that is part of "arm/name" decides."""

    def number(arm: str, name: str, noise: float) -> float:
        return next((value for key, value in table.items() if key in f"{arm}/{name}"), other) + spread * noise

    return number


def sizes(exponent: float, spread: float = 1e-6) -> Maker:
    """Losses that follow a power law; the noise is in its exponent."""

    def number(arm: str, name: str, noise: float) -> float:
        parameters = 24.0 * int(arm) ** 2
        return parameters if name == "parameters" else 5 * parameters ** -(exponent + spread * noise)

    return number


def steps(arm: str, name: str, noise: float) -> float:
    return formula(arm, int(name.split()[1]))


WILD = by({}, 30.0, 25.0)
# For each claim numbers that confirm it, numbers that refute it, and numbers that say nothing.
MADE_UP: dict[str, tuple[Maker, Maker, Maker]] = {
    "lookup": (by({"error at 0.0001": 0.0}, 1.0), by({}, 1.0), by({}, 0.05, 0.5)),
    "order": (by({"with/right": 1.0, "without/right": 0.5}), by({"right": 1.0}), by({"right": 0.5})),
    "order-decoder": (by({"with/right": 1.0, "without/right": 0.5}), by({"right": 1.0}), by({"right": 0.5})),
    "positions": (by({}, 2.0), by({"sinusoidal/loss 256": 3.0}, 2.0), WILD),
    "scale-gradient": (
        by({"undivided gradient 1024": 0.01, "undivided mean gradient 1024": 0.01}, 0.2),
        by({"undivided gradient 1024": 0.01, "undivided mean gradient 1024": 0.05}, 0.2),
        WILD,
    ),
    "scale-training": (by({"undivided 512/loss": 2.0}, 1.0), by({"undivided 512/loss": 0.5}, 1.0), WILD),
    "heads": (by({"4/": 0.5, "8/": 0.5}, 1.0), by({"32/": 0.2}, 1.0), WILD),
    "depth": (by({"both": 1.0}, 0.5), by({}, 1.0), WILD),
    "warm-up": (by({"post without": 0.5}, 1.0), by({"pre without": 0.5}, 1.0), WILD),
    "crossover": (by({"attention/seconds": 1e-3}, 1.0), by({"rnn/seconds 256": 1e-3, "flops": 5e6}, 1.0), WILD),
    "gradients": (
        by({"rnn/straight": 1.0, "rnn/lost": 10.0, "rnn/slope": -0.2, "lstm/slope": -0.1}),
        by({"rnn/straight": 1.0, "rnn/lost": 10.0, "rnn/slope": -0.2, "lstm/slope": -0.3}),
        WILD,
    ),
    "seq2seq-length": (
        by({"none/tokens 16": 0.3}, 1.0),
        by({}, 1.0),
        by({"none/tokens 16": 0.1, "none": 0.5}, 1.0),  # an arm that has not learnt to copy 4 falls from nowhere
    ),
    "ntm-copy": (
        by({"lstm/tokens 20": 0.1}, 1.0),
        by({"tokens 20": 0.1}, 1.0),
        by({"lstm/tokens 20": 0.1, "lstm": 0.69}, 1.0),  # an LSTM that has not learnt says nothing about LSTMs
    ),
    "linear-time": (by({"linear": 1.0}, 2.0), by({}, 2.0), WILD),
    "linear-recall": (by({"linear": 0.2}, 1.0), by({}, 1.0), by({"softmax 16": 0.3, "linear 16": 0.3}, 1.0)),
    "window": (
        by({"text full/gigaflops": 2.0, "first window": 0.2}, 1.0),
        by({"text full/gigaflops": 2.0, "text window/loss": 2.0, "first window": 0.2}, 1.0),
        by({"text full/gigaflops": 2.0, "first window": 0.1, "first full": 0.5}, 1.0),
    ),
    "memory": (by({"loss 0": 3.0, "loss 32": 2.0, "loss 128": 1.0}), by({"loss 0": 1.0, "loss 32": 2.0}), WILD),
    "power-law": (sizes(0.1), sizes(-0.1), sizes(0.1, 0.15)),
    "kaplan-exponent": (sizes(0.076), sizes(0.2), sizes(0.076, 0.2)),
    "modifications": (
        by({"base": 1.0, "on copy": 1.0}, 0.5),
        by({"base": 2.0}, 1.0),
        by({}, 1.0),  # nothing helps anywhere, so nothing could be carried elsewhere
    ),
    "decoder-only": (by({}, 1.0), by({"encoder-decoder/loss": 1.0}, 2.0), WILD),
}


class AnyNumber(dict[str, float]):
    """Whatever number a rule asks for, made up."""

    def __init__(self, arm: str, seed: int, maker: Maker, same: bool) -> None:
        self.arm, self.seed, self.maker, self.same = arm, seed, maker, same

    def __missing__(self, name: str) -> float:
        own = random.Random(f"{self.arm}/{name}/{self.seed}").uniform(-1, 1)
        return self.maker(self.arm, name, NOISE[self.seed] if self.same else own)


def made_up(claim: Claim, maker: Maker) -> Found:
    same = claim.name in ("power-law", "kaplan-exponent")  # all sizes of a seed follow one law
    return Found({arm: [AnyNumber(arm, seed, maker, same) for seed in range(3)] for arm in claim.arms})


@pytest.mark.parametrize("name", MADE_UP)
def test_every_rule_comes_out_all_three_ways(name: str) -> None:
    claim = CLAIMS[name]
    for maker, expected in zip(MADE_UP[name], ("confirmed", "refuted", "not shown"), strict=True):
        parts = claim.parts(made_up(claim, maker))
        assert outcome(parts) == expected, parts


def test_counts_are_exact() -> None:
    """One wrong count, at one length and in one seed, is enough, and so is a difference that never arrives."""
    claim = CLAIMS["paths"]
    assert outcome(claim.parts(made_up(claim, steps))) == "confirmed"
    assert claim.name not in MADE_UP  # there is no third way
    for wrong in (NEVER, 3.0):
        found = made_up(claim, steps)
        found.numbers["window"][2]["steps 65"] = wrong  # type: ignore[index]
        parts = claim.parts(found)
        assert outcome(parts) == "refuted"
        assert f"8 or {wrong:g}" in parts[-1].words or f"{wrong:g} or 8" in parts[-1].words


def test_a_modification_that_helps_by_the_same_everywhere_transfers() -> None:
    claim = CLAIMS["modifications"]
    for gain, expected in ((0.05, "refuted"), (0.015, "not shown"), (0.0, "not shown")):
        found = made_up(claim, by({"base": 1.0}, 1 - gain, 0.0005))
        assert outcome(claim.parts(found)) == expected


@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_says_what_is_measured_and_draws_it(name: str) -> None:
    claim = CLAIMS[name]
    assert all((claim.says, claim.source, claim.protocol, claim.rule, claim.__doc__))
    assert claim.rule.startswith("confirmed:")
    assert "refuted:" in claim.rule
    assert svg(claim.chart(made_up(claim, MADE_UP.get(name, (steps,))[0]))).endswith("</svg>\n")


def test_every_claim_has_a_picture_of_its_own() -> None:
    """Two that judge the same measurements show what each is about."""
    found = made_up(CLAIMS["power-law"], sizes(0.1))
    law, exponent = (CLAIMS[name].chart(found) for name in ("power-law", "kaplan-exponent"))
    assert isinstance(law, Chart)
    assert isinstance(exponent, Chart)
    unseen = law.curves[-1]
    assert list(unseen.x) == found.values("96", "parameters")[:1]
    assert unseen.y[0] == pytest.approx(law.curves[-2].y[-1], rel=0.01)  # made up by a law, so it is predicted
    kaplan = exponent.curves[-1]
    slope = math.log(kaplan.y[0] / kaplan.y[-1]) / math.log(kaplan.x[-1] / kaplan.x[0])
    assert slope == pytest.approx(0.076)
    assert all(low <= y <= high for low, y, high in zip(kaplan.low, kaplan.y, kaplan.high, strict=True))


# --- for real --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "expected"), [("lookup", "confirmed"), ("paths", "confirmed")])
def test_cheap_claims_are_as_documented(name: str, expected: str) -> None:
    claim = CLAIMS[name]
    found = Found({arm: [claim.measure(arm, seed, "quick") for seed in (1, 2, 3)] for arm in claim.arms})
    parts = claim.parts(found)
    assert outcome(parts) == expected, parts


def test_the_steps_of_a_recurrence_are_found_not_assumed() -> None:
    """One whose cell takes nothing over from the state before passes nothing on."""
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


def test_training_with_a_change_of_the_model() -> None:
    """Undivided scores are other scores, and a stack without residuals learns otherwise."""
    one, other = (CLAIMS["depth"].measure(f"{kind} 2", 1, "quick") for kind in ("both", "no residuals"))
    assert one["right"] > 0.9
    assert one["loss"] != other["loss"]
    assert one == CLAIMS["depth"].measure("both 2", 1, "quick")


def test_cells_are_kept_and_not_measured_again(tmp_path: Path) -> None:
    cell = Cell("lookup", "all", 1, "quick")
    assert kept(cell, tmp_path) is None
    keep(Measured(cell, {"error at 1": 7.0, "odd": math.nan}, 1.5), tmp_path)
    known = kept(cell, tmp_path)
    assert known is not None
    assert known.numbers["error at 1"] == 7.0
    assert math.isnan(known.numbers["odd"])
    assert measure_all([cell], tmp_path)[cell].numbers["error at 1"] == 7.0  # no true one is so large
    cell.path(tmp_path).write_text('{"allyouneed": "0.0.0"')
    assert kept(cell, tmp_path) is None  # broken: measured again
    assert kept(Cell("lookup", "all", 1, "full"), tmp_path) is None


def test_cells_of_another_protocol_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("lookup", "all", 1, "quick")
    keep(Measured(cell, {"error at 1": 7.0}, 1.5), tmp_path)
    assert made_with("lookup")["protocol"] != made_with("order")["protocol"]
    for name in ("torch", "protocol"):
        monkeypatch.setattr(work, "made_with", lambda claim, name=name: made_with(claim) | {name: "another"})
        assert kept(cell, tmp_path) is None
    monkeypatch.setattr(work, "made_with", made_with)
    assert kept(cell, tmp_path) is not None


def test_a_second_call_for_one_folder_is_refused(tmp_path: Path) -> None:
    with lock(tmp_path), pytest.raises(StorageError, match="is writing"):
        measure_all([Cell("lookup", "all", 1, "quick")], tmp_path, workers=1)


def test_a_model_that_diverged_answers_by_chance() -> None:
    learnt = learn(who_did_it(1, classes=True), small(type="encoder", layers=1), adam(2), 1)
    assert 0 <= answers(learnt, 0.5)["right"] <= 1
    assert answers(learnt, 0.5)["diverged"] == 0
    for weight in learnt.model.parameters():
        weight.data.fill_(math.nan)
    assert answers(learnt, 0.5) == {"right": 0.5, "loss": WORST, "diverged": 1.0}


def test_a_bad_beginning_is_given_up() -> None:
    """Bits after one step are no better than chance: with a bar that nobody reaches, weights are drawn anew."""
    task = {"type": "copy-bits", "bits": 2, "lengths": [1, 2], "valid": 5, "test": 5, "batch": 2}
    model = {"type": "ntm", "embedding": "bits", "bits": 2, "slots": 4, "slot_width": 4, "hidden": 8}
    train = {"budget": {"steps": 4}, "optimizer": {"type": "adam", "lr": 1e-9}, "evaluate_every": 0.5}
    weights = [
        torch.cat([weight.flatten() for weight in learn(task, model, {**train, **more_}, 1).model.parameters()])
        for more_ in ({}, {}, {"restart_above": 1e-3})
    ]
    assert torch.equal(weights[0], weights[1])
    assert (weights[0] - weights[2]).abs().max() > 1e-3


def test_claims_are_tried_judged_and_written(tmp_path: Path) -> None:
    claims = chosen(["lookup", "scale-gradient"])
    tried = try_claims(claims, tmp_path, seeds=3, effort="quick", workers=1)
    assert [one.result for one in tried] == ["confirmed", "refuted"]  # the mean of the queries keeps a quarter
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


def test_what_cannot_be_measured_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLYOUNEED_DATA", str(tmp_path / "nowhere"))
    memory, lookup = try_claims(chosen(["memory", "lookup"])[::-1], tmp_path, seeds=1, effort="quick", workers=1)
    assert memory.result is None
    assert "nowhere" in memory.errors[0]
    assert lookup.result is not None
    page = write_page([memory, lookup], tmp_path, seeds=1, effort="quick")
    assert "memory: not measured" in page.read_text()


def test_a_worker_that_dies_is_an_error_of_its_cell(tmp_path: Path) -> None:
    bad, good = Cell("nonsense", "all", 1, "quick"), Cell("lookup", "all", 1, "quick")
    found = measure_all([bad, good], tmp_path, workers=1)
    assert "process ended" in found[bad].error
    assert found[good].numbers
    assert kept(bad, tmp_path) is None


def test_a_worker_ends_with_its_parent() -> None:
    worker = subprocess.Popen([sys.executable, "-m", "allyouneed.lab.claims.worker"], stdin=subprocess.PIPE)
    assert worker.stdin is not None
    worker.stdin.close()
    assert worker.wait(timeout=60) == 0


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
    ("arguments", "said"),
    [
        (["lookup", "--all"], "--all tries every claim, lookup only some"),
        (["--seeds", "5"], "only listed"),
        (["--workers", "2"], "only listed"),
        (["--out", "somewhere"], "only listed"),
        (["lookup", "--quick", "--workers", "-1"], "--workers -1"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["claims", *arguments]) == 2
    assert said in capsys.readouterr().err
