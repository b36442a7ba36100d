"""Claims about size and architecture: power laws, modifications, decoder-only models."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar, final

import numpy as np

from allyouneed.lab.charts import AnyChart, Bar, Bars, Chart, Curve, Matrix
from allyouneed.lab.claims.base import (
    Claim,
    ClaimPart,
    Effort,
    Measurements,
    Numbers,
    Result,
    at_least,
    at_most,
    band,
    budget,
    equivalent,
)
from allyouneed.lab.claims.small_runs import accuracies, adam, loss, number_words, shakespeare, small, train_small
from allyouneed.lab.statistics import difference, holm, interval

KAPLAN = 0.076
SIZE = "parameters (without embeddings)"


class _Sizes(Claim):
    """The measurements shared by both claims about size."""

    WIDTHS: ClassVar[Sequence[int]] = (8, 12, 16, 24, 32, 48)
    LARGER: ClassVar[int] = 96
    protocol = (
        "Characters of Shakespeare: decoders of 2 layers and widths 8 to 48 (equal steps on windows of 64), a line "
        "through log loss over log parameters (without embeddings), and a decoder of width 96 that the line was not "
        "fitted to."
    )
    arms = tuple(map(str, (*WIDTHS, LARGER)))

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        width = int(arm)
        model = small(type="decoder", layers=2, width=width, hidden=4 * width, positions="rotary", feedforward="gelu")
        model["mixer"] = {"type": "softmax", "heads": 2}  # rotary positions need pairs: half of every width is even
        trained = train_small(shakespeare(64, 16), model, adam(budget(250, effort), lr=0.1 * width**-0.75), seed)
        weights = sum(weight.numel() for name, weight in trained.model.named_parameters() if "blocks" in name)
        return {"loss": loss(trained.model, trained.data), "parameters": float(weights)}

    def fits(self, found: Measurements) -> list[tuple[float, float, float]]:
        """Return for each seed the exponent, the R2 of the line, and the relative error of its prediction."""
        fits = []
        for seed in range(len(found.numbers[self.arms[0]])):
            rows = [found.numbers[arm][seed] for arm in self.arms]
            x, y = np.log([row["parameters"] for row in rows]), np.log([row["loss"] for row in rows])
            slope, height = np.polyfit(x[:-1], y[:-1], 1)
            left = ((y[:-1] - slope * x[:-1] - height) ** 2).sum() / ((y[:-1] - y[:-1].mean()) ** 2).sum()
            predicted = float(np.exp(slope * x[-1] + height))
            fits.append((float(-slope), float(1 - left), abs(predicted / rows[-1]["loss"] - 1)))
        return fits

    def sizes(self, found: Measurements) -> list[float]:
        """Return the parameter count of each arm; the last one was not used in the fit."""
        return [found.interval(arm, "parameters").mean for arm in self.arms]

    def line(self, found: Measurements, sizes: Sequence[float]) -> list[float]:
        """Return the fitted loss at some sizes: the mean of the lines of all seeds, on logarithmic axes."""
        known = np.log(self.sizes(found)[:-1])
        losses = [np.mean(np.log(found.values(arm, "loss"))) for arm in self.arms[:-1]]
        return [float(loss) for loss in np.exp(np.polyval(np.polyfit(known, losses, 1), np.log(sizes)))]

    def measured(self, found: Measurements, name: str, arms: Sequence[str], **look: Any) -> Curve:
        """Return the losses of some arms as points with intervals."""
        sizes = [found.interval(arm, "parameters").mean for arm in arms]
        return Curve(name, sizes, *band(found, [(arm, "loss") for arm in arms]), style="points", **look)


@final
class PowerLaw(_Sizes):
    """The prediction uses the smaller models alone."""

    NEAR: ClassVar[float] = 0.03
    name = "power-law"
    statement = "loss follows a power law in model size, with diminishing returns, so that larger runs can be predicted"
    source = "Kaplan et al. 2020, arXiv:2001.08361; Hoffmann et al. 2022, arXiv:2203.15556"
    rule = (
        "confirmed: the exponent is above 0 and below 0.5, the line's R2 above 0.95, and its prediction for width "
        "96 is off by less than 3 %; refuted: one of these is shown to be wrong"
    )

    def judge(self, found: Measurements) -> list[ClaimPart]:
        exponents, straight, off = map(list, zip(*self.fits(found), strict=True))
        return [
            at_least("larger is better (exponent)", exponents, 0),
            at_most("with diminishing returns (exponent)", exponents, 0.5),
            at_least("by a power law (R2)", straight, 0.95),
            at_most("and predicts a model twice as wide (relative error)", off, self.NEAR),
        ]

    def chart(self, found: Measurements) -> AnyChart:
        *known, last = self.sizes(found)
        *line, predicted = self.line(found, [*known, last])
        exponents, straight, off = (interval(list(numbers)) for numbers in zip(*self.fits(found), strict=True))
        curves = [
            self.measured(found, "measured, used in the fit", self.arms[:-1], colour=0),
            Curve("fit", known, line, style="dashed", colour=0),
            Curve("prediction", [known[-1], last], [line[-1], predicted], style="dashed", colour=1),
            self.measured(found, "measured, not used in the fit", self.arms[-1:], colour=1),
        ]
        note = (
            f"Exponent {exponents.mean:.3f}, R2 {straight.mean:.3f}; the prediction is off by {off.mean:.1%} "
            f"({self.NEAR:.0%} allowed)."
        )
        return Chart("Is the largest model predicted?", SIZE, "loss, nats", curves, log_x=True, log_y=True, note=note)


@final
class KaplanExponent(_Sizes):
    """The paper measured it on converged models with ample data; it is often quoted as a universal constant. Here all
    sizes are trained for equal steps, far from convergence: a different setup."""

    MARGIN: ClassVar[float] = 0.02
    name = "kaplan-exponent"
    statement = f"the exponent of the power law in model size, {KAPLAN}, is a constant that holds in any setup"
    source = "attributed to Kaplan et al. 2020, arXiv:2001.08361, equation 1.1 (there: converged models, ample data)"
    rule = f"confirmed: the exponent is within {MARGIN} of {KAPLAN}; refuted: it is shown to be farther from it"
    changed = (
        "At first the claim was attributed to the paper itself, which this setup cannot refute: equation 1.1 has "
        "conditions."
    )
    cells_of = "power-law"

    def judge(self, found: Measurements) -> list[ClaimPart]:
        exponents = [exponent for exponent, _, _ in self.fits(found)]
        part = equivalent("the exponent", exponents, [KAPLAN] * len(exponents), self.MARGIN)
        return [replace(part, evidence=f"{interval(exponents).text()} instead of {KAPLAN}")]

    def chart(self, found: Measurements) -> AnyChart:
        sizes = self.sizes(found)[:-1]
        middle = float(np.exp(np.mean(np.log(sizes))))
        (height,) = self.line(found, [middle])

        def falling(exponent: float) -> list[float]:
            return [height * (size / middle) ** -exponent for size in sizes]

        steep, flat = falling(KAPLAN + self.MARGIN), falling(KAPLAN - self.MARGIN)
        exponents = interval([exponent for exponent, _, _ in self.fits(found)])
        curves = [
            self.measured(found, "measured", self.arms[:-1], colour=0),
            Curve(f"exponent {exponents.mean:.3f}, fitted", sizes, self.line(found, sizes), style="dashed", colour=0),
            Curve(
                f"exponent {KAPLAN}; shaded: within {self.MARGIN}",
                sizes,
                falling(KAPLAN),
                list(map(min, steep, flat)),
                list(map(max, steep, flat)),
                style="dashed",
                colour=1,
            ),
        ]
        note = f"Fitted: {exponents.text()}. All lines meet at the middle size, so that slopes can be compared."
        return Chart("Is the exponent Kaplan's?", SIZE, "loss, nats", curves, log_x=True, log_y=True, note=note)


@final
class Modifications(Claim):
    """Narang et al. in miniature. A modification that helps on no task has nothing to transfer; one that helps on some
    task transfers if it helps on all. Helping and not helping have the same threshold and the same tests."""

    name = "modifications"
    statement = "most modifications of the Transformer do not transfer from one task to the others"
    source = "Narang et al. 2021, arXiv:2102.11972"
    protocol = (
        "A decoder (2 layers, width 64, pre-norm, ReLU, sinusoidal) and five modifications (GELU, SwiGLU with equal "
        "parameters, RMSNorm, rotary positions, ALiBi) on three tasks: characters, copying, number words; equal "
        "steps; loss."
    )
    rule = (
        "confirmed: of the modifications that help on some task, more than half do not help on another; refuted: more "
        "than half of them help on all tasks; precondition: two or more help on some task. A modification helps if it "
        "is shown to lower the loss by more than 2 %, and does not help if it is shown not to (Holm over all 15 tests)"
    )
    changed = (
        "At first a modification counted as not transferring if one of three uncorrected tests showed no help, even if "
        "it helped on no task; noise alone confirmed that. ALiBi replaced post-norm, which is a step back."
    )
    BAR: ClassVar[float] = 0.02
    CHANGES: ClassVar[dict[str, dict[str, Any]]] = {
        "GELU": {"feedforward": "gelu"},
        "SwiGLU": {"feedforward": "swiglu", "hidden": 85},
        "RMSNorm": {"normalisation": "rms"},
        "rotary": {"positions": "rotary"},
        "ALiBi": {"positions": "alibi"},
    }
    TASKS: ClassVar[Sequence[str]] = ("characters", "copy", "numbers")
    arms = tuple(map(" on ".join, product(("base", *CHANGES), TASKS)))

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        name, _, where = arm.partition(" on ")
        task = {
            "characters": shakespeare(64, 16),
            "copy": {"type": "copy", "lengths": [1, 10], "valid": 200, "test": 1, "batch": 32},
            "numbers": number_words(),
        }[where]
        trained = train_small(
            task, small(type="decoder", layers=2, **self.CHANGES.get(name, {})), adam(budget(150, effort)), seed
        )
        return {"loss": loss(trained.model, trained.data)}

    def gains(self, found: Measurements, name: str, task: str) -> list[float]:
        """Return the relative reduction of each seed's loss against the base."""
        ours, base = found.values(f"{name} on {task}", "loss"), found.values(f"base on {task}", "loss")
        return [1 - our / their for our, their in zip(ours, base, strict=True)]

    def judge(self, found: Measurements) -> list[ClaimPart]:
        gains = {cell: self.gains(found, *cell) for cell in product(self.CHANGES, self.TASKS)}
        tests = {cell: difference(values, [self.BAR] * len(values), paired=True) for cell, values in gains.items()}
        holds = holm({" ".join(cell): test.p for cell, test in tests.items()})
        is_sure = {cell: test.is_shown() and holds[" ".join(cell)] for cell, test in tests.items()}
        useful = transfer = fail = 0
        for name in self.CHANGES:
            sides = [tests[name, task].interval.mean > 0 if is_sure[name, task] else None for task in self.TASKS]
            if True in sides:
                useful, transfer, fail = useful + 1, transfer + all(sides), fail + (False in sides)
        result: Result = "not shown"
        if useful >= 2:
            result = "confirmed" if fail > useful / 2 else "refuted" if transfer > useful / 2 else "not shown"
        counts = (
            f"{useful} of {len(self.CHANGES)} help on some task, {transfer} of these on all tasks, "
            f"{fail} not on another"
        )
        means = (
            f"{name} " + ", ".join(f"{task} {np.mean(gains[name, task]):+.1%}" for task in self.TASKS)
            for name in self.CHANGES
        )
        return [ClaimPart("most do not transfer", result, "; ".join([counts, *means]))]

    def chart(self, found: Measurements) -> AnyChart:
        values, sure = [], []
        for name in self.CHANGES:
            row = [self.gains(found, name, task) for task in self.TASKS]
            values.append([100 * float(np.mean(gains)) for gains in row])
            sure.append([difference(gains, [0.0] * len(gains), paired=True).is_shown() for gains in row])
        title = "Reduction of the loss, %"
        note = "Bold: a difference is shown. Blue is better, orange worse; colours saturate at 50 %."
        return Matrix(title, list(self.CHANGES), list(self.TASKS), values, sure, note, 1, reach=50.0)


@final
class DecoderOnly(Claim):
    """Two encoder layers and two decoder layers with cross-attention have as many weights as five decoder layers."""

    name = "decoder-only"
    statement = "a decoder alone suffices: with the source as a prefix it is as good as an encoder-decoder"
    source = "Liu et al. 2018, arXiv:1801.10198"
    protocol = (
        "English number words into French ones, word by word: an encoder-decoder (2 + 2 layers, width 64) and a "
        "decoder (5 layers), equal parameters, equal steps; loss on unseen numbers."
    )
    rule = (
        "confirmed: the decoder's loss is less than 0.05 nats above the other; refuted: it is shown to be further above"
    )
    arms = ("encoder-decoder", "decoder")

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        layers = {"layers": 5} if arm == "decoder" else {"encoder_layers": 2, "decoder_layers": 2}
        trained = train_small(number_words(), small(type=arm, **layers), adam(budget(200, effort), lr=2e-3), seed)
        numbers = {"loss": loss(trained.model, trained.data), "exact": accuracies(trained.model, trained.data)[1]}
        return {**numbers, "parameters": float(trained.model.parameter_count()), "gigaflops": trained.flops / 1e9}

    def judge(self, found: Measurements) -> list[ClaimPart]:
        both, alone = (found.values(arm, "loss") for arm in self.arms)
        above = [ours - theirs for ours, theirs in zip(alone, both, strict=True)]
        return [at_most("the decoder's loss is not higher (difference, nats)", above, 0.05)]

    def chart(self, found: Measurements) -> AnyChart:
        ends = {arm: found.interval(arm, "loss") for arm in self.arms}
        bars = [Bar(arm, end.mean, end.low, end.high) for arm, end in ends.items()]
        return Bars("Number words, equal parameters", "loss, nats", bars)
