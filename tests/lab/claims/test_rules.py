"""Claims: every rule can yield each of its three outcomes."""

import math
import random
from collections.abc import Callable

import pytest

from allyouneed.lab.charts import Chart, svg
from allyouneed.lab.claims import CLAIMS
from allyouneed.lab.claims.base import (
    Claim,
    ClaimPart,
    Measurements,
    at_least,
    at_most,
    by_definition,
    corrected,
    equivalent,
    greater,
    outcome,
    provided,
)
from allyouneed.lab.claims.structure import NEVER, formula

pytestmark = pytest.mark.no_shapes
NOISE = (-1.0, 0.3, 0.7)  # of three seeds


def around(mean: float, spread: float = 0.01) -> list[float]:
    return [mean + spread * noise for noise in NOISE]


# --- building blocks of rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mean", "expected"), [(1.0, "confirmed"), (-1.0, "refuted"), (0.001, "not shown")])
def test_a_difference_counts_only_if_it_is_shown(mean: float, expected: str) -> None:
    assert greater("more", around(mean), [0.0] * 3).result == expected
    assert at_least("above", around(mean), 0.0).result == expected
    assert at_most("below", around(-mean), 0.0).result == expected


def test_the_margin_is_part_of_the_rule() -> None:
    assert greater("more", around(1.0), around(0.8), 0.1).result == "confirmed"
    assert greater("more", around(1.0), around(0.8), 0.3).result == "refuted"


def test_equivalence_is_more_than_no_difference_shown() -> None:
    assert equivalent("a tie", around(1.0), [1.0] * 3, 0.1).result == "confirmed"
    assert equivalent("a tie", around(1.2), [1.0] * 3, 0.1).result == "refuted"
    assert equivalent("a tie", around(0.8), [1.0] * 3, 0.1).result == "refuted"
    assert equivalent("a tie", around(1.0, 0.5), [1.0] * 3, 0.1).result == "not shown"


def test_one_seed_shows_nothing() -> None:
    assert greater("more", [2.0], [1.0]).result == "not shown"
    assert equivalent("a tie", [1.0], [1.0], 0.5).result == "not shown"


def test_one_refuted_part_refutes_the_whole() -> None:
    yes, no, open_ = (ClaimPart("", result, "") for result in ("confirmed", "refuted", "not shown"))
    assert outcome([yes, yes]) == "confirmed"
    assert outcome([yes, open_]) == "not shown"
    assert outcome([yes, open_, no]) == "refuted"


def test_a_part_refuted_by_one_test_of_many_is_not_shown() -> None:
    wrong, right = ClaimPart("wrong", "refuted", "", 0.02), ClaimPart("right", "confirmed", "", 0.001)
    assert outcome(corrected([wrong, right])) == "refuted"  # 0.02 * 2 < 0.05
    assert outcome(corrected([wrong, right, right])) == "not shown"
    assert outcome(corrected([wrong, *map(by_definition, [right, right, right])])) == "refuted"  # these are not tests
    exact = ClaimPart("counted", "refuted", "")
    assert outcome(corrected([exact, *[right] * 20])) == "refuted"
    late = ClaimPart("late", "confirmed", "", 0.04)
    assert outcome(corrected([late] * 20)) == "confirmed"  # all have to hold: nothing to correct


def test_preconditions_only_decide_whether_an_experiment_is_conclusive() -> None:
    no, yes = ClaimPart("", "refuted", "", 0.001), ClaimPart("", "confirmed", "", 0.001)
    assert outcome(provided([yes, yes], [no])) == "refuted"
    assert outcome(provided([yes, no], [no])) == outcome(provided([yes, no], [yes])) == "not shown"
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
        by({"none/tokens 16": 0.1, "none": 0.5}, 1.0),  # an arm that cannot copy 4 symbols cannot degrade
    ),
    "ntm-copy": (
        by({"lstm/tokens 20": 0.1}, 1.0),
        by({"tokens 20": 0.1}, 1.0),
        by({"lstm/tokens 20": 0.1, "lstm": 0.69}, 1.0),  # an LSTM that has not learnt is inconclusive
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
        by({}, 1.0),  # no modification helps, so nothing can transfer
    ),
    "decoder-only": (by({}, 1.0), by({"encoder-decoder/loss": 1.0}, 2.0), WILD),
}


class AnyNumber(dict[str, float]):
    """Numbers made up on demand."""

    def __init__(self, arm: str, seed: int, maker: Maker, same: bool) -> None:
        self.arm, self.seed, self.maker, self.same = arm, seed, maker, same

    def __missing__(self, name: str) -> float:
        own = random.Random(f"{self.arm}/{name}/{self.seed}").uniform(-1, 1)
        return self.maker(self.arm, name, NOISE[self.seed] if self.same else own)


def made_up(claim: Claim, maker: Maker) -> Measurements:
    same = claim.name in ("power-law", "kaplan-exponent")  # all sizes of a seed follow one law
    return Measurements({arm: [AnyNumber(arm, seed, maker, same) for seed in range(3)] for arm in claim.arms})


@pytest.mark.parametrize("name", MADE_UP)
def test_every_rule_has_all_three_outcomes(name: str) -> None:
    claim = CLAIMS[name]
    for maker, expected in zip(MADE_UP[name], ("confirmed", "refuted", "not shown"), strict=True):
        parts = claim.parts(made_up(claim, maker))
        assert outcome(parts) == expected, parts


def test_counts_are_exact() -> None:
    """One wrong count, at one length and in one seed, refutes, and so does a change that never arrives."""
    claim = CLAIMS["paths"]
    assert outcome(claim.parts(made_up(claim, steps))) == "confirmed"
    assert claim.name not in MADE_UP  # counts cannot be inconclusive
    for wrong in (NEVER, 3.0):
        found = made_up(claim, steps)
        found.numbers["window"][2]["steps 65"] = wrong  # type: ignore[index]
        parts = claim.parts(found)
        assert outcome(parts) == "refuted"
        assert f"8 or {wrong:g}" in parts[-1].evidence or f"{wrong:g} or 8" in parts[-1].evidence


def test_a_modification_that_helps_equally_on_all_tasks_transfers() -> None:
    claim = CLAIMS["modifications"]
    for gain, expected in ((0.05, "refuted"), (0.015, "not shown"), (0.0, "not shown")):
        found = made_up(claim, by({"base": 1.0}, 1 - gain, 0.0005))
        assert outcome(claim.parts(found)) == expected


@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_is_documented_and_has_a_chart(name: str) -> None:
    claim = CLAIMS[name]
    assert all((claim.statement, claim.source, claim.protocol, claim.rule, claim.__doc__))
    assert claim.rule.startswith("confirmed:")
    assert "refuted:" in claim.rule
    assert svg(claim.chart(made_up(claim, MADE_UP.get(name, (steps,))[0]))).endswith("</svg>\n")


def test_claims_with_shared_measurements_have_different_charts() -> None:
    """Claims that share measurements draw different aspects."""
    found = made_up(CLAIMS["power-law"], sizes(0.1))
    law, exponent = (CLAIMS[name].chart(found) for name in ("power-law", "kaplan-exponent"))
    assert isinstance(law, Chart)
    assert isinstance(exponent, Chart)
    unseen = law.curves[-1]
    assert list(unseen.x) == found.values("96", "parameters")[:1]
    assert unseen.y[0] == pytest.approx(law.curves[-2].y[-1], rel=0.01)  # follows the law exactly, so it is predicted
    kaplan = exponent.curves[-1]
    slope = math.log(kaplan.y[0] / kaplan.y[-1]) / math.log(kaplan.x[-1] / kaplan.x[0])
    assert slope == pytest.approx(0.076)
    assert all(low <= y <= high for low, y, high in zip(kaplan.low, kaplan.y, kaplan.high, strict=True))
