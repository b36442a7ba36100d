"""Claims about size and shape: power laws, modifications, one stack or two."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar, final

import numpy as np

from allyouneed.lab.charts import AnyChart, Bar, Bars, Chart, Curve, Matrix
from allyouneed.lab.claims.base import (
    Claim,
    Effort,
    Found,
    Numbers,
    Part,
    Result,
    alike,
    at_least,
    at_most,
    band,
    budget,
)
from allyouneed.lab.claims.trial import adam, learn, loss, number_words, right, shakespeare, small
from allyouneed.lab.statistics import difference, holm, interval

KAPLAN = 0.076
SIZE = "parameters (embeddings left out)"


class _Sizes(Claim):
    """What both claims about size measure."""

    WIDTHS: ClassVar[Sequence[int]] = (8, 12, 16, 24, 32, 48)
    LARGER: ClassVar[int] = 96
    protocol = (
        "Characters of Shakespeare: decoders of 2 layers and widths 8 to 48 (as many steps on windows of 64), a "
        "line through log loss over log parameters (embeddings left out), and a decoder of width 96 that the line "
        "has not seen."
    )
    arms = tuple(map(str, (*WIDTHS, LARGER)))

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        width = int(arm)
        model = small(type="decoder", layers=2, width=width, hidden=4 * width, positions="rotary", feedforward="gelu")
        model["mixer"] = {"type": "softmax", "heads": 2}  # rotary positions turn pairs: half of every width is even
        learnt = learn(shakespeare(64, 16), model, adam(budget(250, effort), lr=0.1 * width**-0.75), seed)
        weights = sum(weight.numel() for name, weight in learnt.model.named_parameters() if "blocks" in name)
        return {"loss": loss(learnt.model, learnt.data), "parameters": float(weights)}

    def fits(self, found: Found) -> list[tuple[float, float, float]]:
        """For each seed the exponent, how straight the line is (R2), and how far off its prediction is (a share)."""
        fits = []
        for seed in range(len(found.numbers[self.arms[0]])):
            rows = [found.numbers[arm][seed] for arm in self.arms]
            x, y = np.log([row["parameters"] for row in rows]), np.log([row["loss"] for row in rows])
            slope, height = np.polyfit(x[:-1], y[:-1], 1)
            left = ((y[:-1] - slope * x[:-1] - height) ** 2).sum() / ((y[:-1] - y[:-1].mean()) ** 2).sum()
            predicted = float(np.exp(slope * x[-1] + height))
            fits.append((float(-slope), float(1 - left), abs(predicted / rows[-1]["loss"] - 1)))
        return fits

    def sizes(self, found: Found) -> list[float]:
        """Parameters of each arm, the one that the line has not seen last."""
        return [found.interval(arm, "parameters").mean for arm in self.arms]

    def line(self, found: Found, sizes: Sequence[float]) -> list[float]:
        """What the line says of some sizes: the mean of the lines of all seeds, on logarithmic axes."""
        known = np.log(self.sizes(found)[:-1])
        losses = [np.mean(np.log(found.values(arm, "loss"))) for arm in self.arms[:-1]]
        return [float(loss) for loss in np.exp(np.polyval(np.polyfit(known, losses, 1), np.log(sizes)))]

    def measured(self, found: Found, name: str, arms: Sequence[str], **look: Any) -> Curve:
        """The losses of some arms as points with intervals."""
        sizes = [found.interval(arm, "parameters").mean for arm in arms]
        return Curve(name, sizes, *band(found, [(arm, "loss") for arm in arms]), style="points", **look)


@final
class PowerLaw(_Sizes):
    """The prediction is made from the smaller ones alone."""

    NEAR: ClassVar[float] = 0.03
    name = "power-law"
    says = (
        "loss follows a power law in the size of the model, with diminishing returns, so that larger runs can be "
        "predicted"
    )
    source = "Kaplan et al. 2020, arXiv:2001.08361; Hoffmann et al. 2022, arXiv:2203.15556"
    rule = (
        "confirmed: the exponent is above 0 and below 0.5, the line's R2 above 0.95, and its prediction for width "
        "96 off by less than 3 %; refuted: one of these is shown to be wrong"
    )

    def judge(self, found: Found) -> list[Part]:
        exponents, straight, off = map(list, zip(*self.fits(found), strict=True))
        return [
            at_least("larger is better (exponent)", exponents, 0),
            at_most("with diminishing returns (exponent)", exponents, 0.5),
            at_least("by a power law (R2)", straight, 0.95),
            at_most("and a size 2 times as wide is predicted (share off)", off, self.NEAR),
        ]

    def chart(self, found: Found) -> AnyChart:
        *known, last = self.sizes(found)
        *line, predicted = self.line(found, [*known, last])
        exponents, straight, off = (interval(list(numbers)) for numbers in zip(*self.fits(found), strict=True))
        curves = [
            self.measured(found, "measured, and the line is fitted to them", self.arms[:-1], colour=0),
            Curve("the line", known, line, style="dashed", colour=0),
            Curve("what it predicts", [known[-1], last], [line[-1], predicted], style="dashed", colour=1),
            self.measured(found, "measured, not seen by the line", self.arms[-1:], colour=1),
        ]
        note = (
            f"Exponent {exponents.mean:.3f}, R2 {straight.mean:.3f}; the prediction is {off.mean:.1%} off, "
            f"where {self.NEAR:.0%} are allowed."
        )
        return Chart("Is the largest model predicted?", SIZE, "loss, nats", curves, log_x=True, log_y=True, note=note)


@final
class KaplanExponent(_Sizes):
    """The paper found it in models trained until they had converged, with ample text; it is often quoted as if it were
    a constant of nature. Here all sizes are trained for as many steps, far from converged: one more setup."""

    MARGIN: ClassVar[float] = 0.02
    name = "kaplan-exponent"
    says = f"the exponent of the power law in the size of the model, {KAPLAN}, is a constant: any setup has it"
    source = "often said of Kaplan et al. 2020, arXiv:2001.08361, equation 1.1 (there: of converged models, ample data)"
    rule = f"confirmed: the exponent is within {MARGIN} of {KAPLAN}; refuted: it is shown to be farther from it"
    changed = (
        "The claim was put as the paper's own at first, which this setup cannot refute: equation 1.1 has conditions."
    )
    cells_of = "power-law"

    def judge(self, found: Found) -> list[Part]:
        exponents = [exponent for exponent, _, _ in self.fits(found)]
        part = alike("the exponent", exponents, [KAPLAN] * len(exponents), self.MARGIN)
        return [replace(part, words=f"{interval(exponents).text()} instead of {KAPLAN}")]

    def chart(self, found: Found) -> AnyChart:
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
        note = f"Fitted: {exponents.text()}. All lines meet in the middle of the sizes: their slopes are compared."
        return Chart("Is the exponent Kaplan's?", SIZE, "loss, nats", curves, log_x=True, log_y=True, note=note)


@final
class Modifications(Claim):
    """Narang et al. in miniature. A modification that helps nowhere has nothing to transfer; one that helps somewhere
    transfers if it helps wherever it is tried. Helping and not helping have the same bar and the same tests."""

    name = "modifications"
    says = "most modifications of the Transformer do not transfer from one task to the others"
    source = "Narang et al. 2021, arXiv:2102.11972"
    protocol = (
        "A decoder (2 layers, width 64, pre-norm, ReLU, sinusoidal) and five modifications (GELU, SwiGLU with as "
        "many parameters, RMSNorm, rotary positions, ALiBi) on three tasks: characters, copying, number words; "
        "as many steps; loss."
    )
    rule = (
        "confirmed: more than half of those that help somewhere do not help elsewhere; refuted: more than half of them "
        "help everywhere; neither, unless two or more help somewhere. To help on a task is to be shown to lower the "
        "loss by more than 2 %, not to help is to be shown not to (Holm over all 15 tests)"
    )
    changed = (
        "At first a modification counted as one that does not transfer if one of three uncorrected tests said that it "
        "does not help, even if it helped nowhere; noise alone confirmed that. Post-norm, a step back, was one of the "
        "five; ALiBi took its place."
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
        learnt = learn(
            task, small(type="decoder", layers=2, **self.CHANGES.get(name, {})), adam(budget(150, effort)), seed
        )
        return {"loss": loss(learnt.model, learnt.data)}

    def gains(self, found: Found, name: str, task: str) -> list[float]:
        """By which share each seed's loss is lower than the base's."""
        ours, base = found.values(f"{name} on {task}", "loss"), found.values(f"base on {task}", "loss")
        return [1 - our / their for our, their in zip(ours, base, strict=True)]

    def judge(self, found: Found) -> list[Part]:
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
        words = f"{useful} of {len(self.CHANGES)} help somewhere, {transfer} of these everywhere, {fail} not elsewhere"
        means = (
            f"{name} " + ", ".join(f"{task} {np.mean(gains[name, task]):+.1%}" for task in self.TASKS)
            for name in self.CHANGES
        )
        return [Part("most do not transfer", result, "; ".join([words, *means]))]

    def chart(self, found: Found) -> AnyChart:
        values, sure = [], []
        for name in self.CHANGES:
            row = [self.gains(found, name, task) for task in self.TASKS]
            values.append([100 * float(np.mean(gains)) for gains in row])
            sure.append([difference(gains, [0.0] * len(gains), paired=True).is_shown() for gains in row])
        title = "How much lower the loss is, %"
        note = "Bold: a difference is shown. Blue is better, orange worse; colours end at 50 %."
        return Matrix(title, list(self.CHANGES), list(self.TASKS), values, sure, note, 1, reach=50.0)


@final
class DecoderOnly(Claim):
    """Two layers of an encoder and two of a decoder with cross-attention have as many weights as five of a decoder."""

    name = "decoder-only"
    says = "a decoder alone suffices: given the source as the beginning of its text it is as good as an encoder-decoder"
    source = "Liu et al. 2018, arXiv:1801.10198"
    protocol = (
        "English number words into French ones, word by word: an encoder-decoder (2 + 2 layers, width 64) and a "
        "decoder (5 layers), as many parameters, as many steps; loss on unseen numbers."
    )
    rule = "confirmed: the decoder's loss is less than 0.05 nats above the other; refuted: it is shown to be more above"
    arms = ("encoder-decoder", "decoder")

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        layers = {"layers": 5} if arm == "decoder" else {"encoder_layers": 2, "decoder_layers": 2}
        learnt = learn(number_words(), small(type=arm, **layers), adam(budget(200, effort), lr=2e-3), seed)
        numbers = {"loss": loss(learnt.model, learnt.data), "exact": right(learnt.model, learnt.data)[1]}
        return {**numbers, "parameters": float(learnt.model.parameter_count()), "gigaflops": learnt.flops / 1e9}

    def judge(self, found: Found) -> list[Part]:
        both, alone = (found.values(arm, "loss") for arm in self.arms)
        above = [ours - theirs for ours, theirs in zip(alone, both, strict=True)]
        return [at_most("the decoder's loss is hardly above (difference, nats)", above, 0.05)]

    def chart(self, found: Found) -> AnyChart:
        ends = {arm: found.interval(arm, "loss") for arm in self.arms}
        bars = [Bar(arm, end.mean, end.low, end.high) for arm, end in ends.items()]
        return Bars("Number words, as many parameters", "loss, nats", bars)
