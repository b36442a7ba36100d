"""Claims: every rule can come out all three ways; the cheap ones are tried for real; what was measured is kept."""

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from allyouneed.errors import ConfigError
from allyouneed.lab.charts import svg
from allyouneed.lab.claims import CLAIMS
from allyouneed.lab.claims.base import Claim, Found, Part, alike, at_least, at_most, more, outcome
from allyouneed.lab.claims.structure import formula
from allyouneed.lab.claims.verdicts import cells_of, chosen, finished, try_claims, write_page
from allyouneed.lab.claims.work import Cell, Measured, keep, kept, measure_all

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
    "order": (
        by({"with/right": 1.0, "without/right": 0.5}),
        by({"encoder-decoder without/right": 0.5, "right": 1.0}),
        WILD,
    ),
    "positions": (by({}, 2.0), by({"sinusoidal/loss 256": 3.0}, 2.0), WILD),
    "scale-gradient": (by({"undivided gradient 1024": 0.01}, 0.2), by({}, 0.2), WILD),
    "scale-training": (by({"undivided 512/loss": 2.0}, 1.0), by({"undivided 512/loss": 0.5}, 1.0), WILD),
    "heads": (by({"4/": 0.5, "8/": 0.5}, 1.0), by({"32/": 0.2}, 1.0), WILD),
    "depth": (by({"both": 1.0}, 0.5), by({}, 1.0), WILD),
    "warm-up": (by({"post without": 0.5}, 1.0), by({"pre without": 0.5}, 1.0), WILD),
    "paths": (steps, by({}, 4.0), lambda arm, name, noise: steps(arm, name, noise) + (noise > 0)),
    "crossover": (
        by({"attention/flops 32": 1e6, "attention/flops 256": 9e6, "attention/seconds": 1e-3, "flops": 5e6}, 1.0),
        by({"rnn/flops 32": 1e6, "flops": 5e6}, 1.0),
        WILD,
    ),
    "gradients": (
        by({"rnn/straight": 1.0, "rnn/lost": 10.0, "rnn/slope": -0.2, "lstm/slope": -0.1}),
        by({"rnn/straight": 1.0, "rnn/lost": 10.0, "rnn/slope": -0.2, "lstm/slope": -0.3}),
        WILD,
    ),
    "seq2seq-length": (by({"none/tokens 16": 0.3}, 1.0), by({}, 1.0), by({}, 0.5, 0.5)),
    "ntm-copy": (by({"lstm": 0.3}, 1.0), by({"tokens 24": 0.3}, 1.0), by({}, 0.3)),
    "linear-time": (by({"linear": 1.0}, 2.0), by({}, 2.0), WILD),
    "linear-recall": (by({"linear": 0.2}, 1.0), by({}, 1.0), WILD),
    "window": (
        by({"text full/gigaflops": 2.0, "first window": 0.2}, 1.0),
        by({"text full/gigaflops": 2.0, "text window/loss": 2.0, "first window": 0.2}, 1.0),
        WILD,
    ),
    "memory": (by({"loss 0": 3.0, "loss 32": 2.0, "loss 128": 1.0}), by({"loss 0": 1.0, "loss 32": 2.0}), WILD),
    "power-law": (sizes(0.1), sizes(-0.1), sizes(0.1, 0.15)),
    "kaplan-exponent": (sizes(0.076), sizes(0.2), sizes(0.076, 0.2)),
    "modifications": (
        by({"GELU on copy": 2.0, "SwiGLU on copy": 2.0, "RMSNorm on numbers": 2.0}, 1.0),
        by({"base": 2.0}, 1.0),
        WILD,
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


@pytest.mark.parametrize("name", CLAIMS)
def test_every_rule_comes_out_all_three_ways(name: str) -> None:
    claim = CLAIMS[name]
    for maker, expected in zip(MADE_UP[name], ("confirmed", "refuted", "not shown"), strict=True):
        parts = claim.judge(made_up(claim, maker))
        assert outcome(parts) == expected, parts


@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_says_what_is_measured_and_draws_it(name: str) -> None:
    claim = CLAIMS[name]
    assert all((claim.says, claim.source, claim.protocol, claim.rule, claim.__doc__))
    assert claim.rule.startswith("confirmed:")
    assert "refuted:" in claim.rule
    assert svg(claim.chart(made_up(claim, MADE_UP[name][0]))).endswith("</svg>\n")


# --- for real --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lookup", "scale-gradient", "paths"])
def test_cheap_claims_hold(name: str) -> None:
    claim = CLAIMS[name]
    found = Found({arm: [claim.measure(arm, seed, "quick") for seed in (1, 2, 3)] for arm in claim.arms})
    parts = claim.judge(found)
    assert outcome(parts) == "confirmed", parts


def test_a_recurrence_forgets_and_attention_does_not() -> None:
    claim = CLAIMS["gradients"]
    rnn, softmax = (claim.measure(arm, 1, "quick") for arm in ("rnn", "softmax"))
    assert rnn["lost"] > 5
    assert abs(softmax["lost"]) < 0.5


def test_training_with_a_change_of_the_model() -> None:
    """Undivided scores are other scores, and a stack without residuals learns otherwise."""
    one, other = (CLAIMS["depth"].measure(f"{kind} 2", 1, "quick") for kind in ("both", "neither"))
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


def test_claims_are_tried_judged_and_written(tmp_path: Path) -> None:
    claims = chosen(["lookup", "scale-gradient"])
    tried = try_claims(claims, tmp_path, seeds=3, effort="quick", workers=1)
    assert [one.result for one in tried] == ["confirmed", "confirmed"]
    page = write_page(tried, tmp_path, seeds=3, effort="quick")
    data = json.loads(page.with_suffix(".json").read_text())
    assert [one["outcome"] for one in data["claims"]] == ["confirmed", "confirmed"]
    assert len(data["claims"][0]["numbers"]["all"]) == 3
    assert data["claims"][0]["command"] == "allyouneed claims lookup --seeds 3 --quick"
    text = page.read_text()
    assert "lookup: confirmed" in text
    assert "| **confirmed** | one-hot weights" in (tmp_path / "quick" / "verdicts.md").read_text()
    assert CLAIMS["lookup"].protocol in text
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
