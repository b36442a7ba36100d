"""Claims about attention itself: soft lookup, scale, heads."""

import math
from collections.abc import Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from allyouneed.lab.charts import AnyChart, Chart, Curve
from allyouneed.lab.claims.base import (
    Claim,
    ClaimPart,
    Effort,
    Measurements,
    Numbers,
    at_least,
    at_most,
    band,
    budget,
    greater,
)
from allyouneed.lab.claims.small_runs import accuracies, adam, loss, number_words, small, train_small
from allyouneed.lab.claims.small_tasks import agent_task
from allyouneed.mixers.lookup import hard_alpha, lookup, soft_alpha
from allyouneed.mixers.softmax import Softmax
from allyouneed.models import Model
from allyouneed.positions import ScorePosition


@final
class SoftLookup(Claim):
    """Scores are divided by a temperature; nothing else changes. Queries are noisy keys, so that every query has a
    correct row, and the reference is the one-hot lookup itself."""

    name = "lookup"
    statement = "attention is a soft hash-table lookup: as its weights become one-hot, it retrieves a row exactly"
    source = "Vaswani et al. 2017, section 3.2; Bahdanau et al. 2014"
    protocol = (
        "64 random unit keys of width 16 with random values, 64 queries (a key with noise of 0.1), float64; scores "
        "divided by temperatures from 1 to 0.0001; the largest difference from the row of the one-hot lookup."
    )
    rule = (
        "confirmed: the difference is below 1e-6 at the lowest temperature and above 0.1 at 1; refuted: one of "
        "these is shown to be wrong"
    )
    TEMPERATURES: ClassVar[Sequence[float]] = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0001)

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        generator = torch.Generator().manual_seed(seed)
        k_BHSK = torch.randn(1, 1, 64, 16, generator=generator, dtype=torch.float64)
        k_BHSK = k_BHSK / k_BHSK.norm(dim=-1, keepdim=True)
        v_BHSR = torch.randn(1, 1, 64, 16, generator=generator, dtype=torch.float64)
        q_BHTK = k_BHSK + 0.1 / 4 * torch.randn(1, 1, 64, 16, generator=generator, dtype=torch.float64)
        exact = lookup(hard_alpha(q_BHTK, k_BHSK), v_BHSR)
        return {
            f"error at {t:g}": float((lookup(soft_alpha(q_BHTK / t, k_BHSK), v_BHSR) - exact).abs().max())
            for t in self.TEMPERATURES
        }

    def judge(self, found: Measurements) -> list[ClaimPart]:
        return [
            at_most("one-hot weights retrieve a row", found.values("all", "error at 0.0001"), 1e-6, 9),
            at_least("soft weights blend rows", found.values("all", "error at 1"), 0.1),
        ]

    def chart(self, found: Measurements) -> AnyChart:
        names = [("all", f"error at {t:g}") for t in self.TEMPERATURES]
        mean, low, high = ([max(value, 1e-17) for value in values] for values in band(found, names))
        curve = Curve("soft lookup", self.TEMPERATURES, mean, low, high)
        return Chart(
            "A soft lookup becomes a hash table", "temperature", "largest difference from the row", [curve], True, True,
            note="Exact zeros are drawn at 1e-17.",
        )  # fmt: skip


@final
class ScaleGradient(Claim):
    """Components of queries and keys have mean 0 and variance 1, as the footnote of the paper assumes. The median
    describes the typical query. A few queries whose two best keys are close keep a gradient at any width, so the mean,
    which determines a training step, falls only with the square root of the width. Both are judged."""

    name = "scale-gradient"
    statement = (
        "without the division by sqrt(d_k) the softmax of large d_k has extremely small gradients; with it, it has not"
    )
    source = "Vaswani et al. 2017, section 3.2.1"
    protocol = (
        "256 random queries over 64 random keys of widths 4 to 1024: the norm of the softmax's Jacobian (median and "
        "mean over queries) and the entropy of its weights, with scores divided by sqrt(d_k) and undivided."
    )
    rule = (
        "confirmed: undivided, the median norm at 1024 is less than a fifth of that at 4, and so is the mean norm; "
        "divided, both are more than four fifths; refuted: one of these is shown to be wrong"
    )
    changed = (
        "The rule used the mean at first, and the median after one seed had shown that the mean falls only to a "
        "quarter; now it uses both."
    )
    WIDTHS: ClassVar[Sequence[int]] = (4, 16, 64, 256, 1024)

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        generator, numbers = torch.Generator().manual_seed(seed), {}
        for width in self.WIDTHS:
            q_TK, k_SK = (torch.randn(rows, width, generator=generator, dtype=torch.float64) for rows in (256, 64))
            for how, scale in (("divided", math.sqrt(width)), ("undivided", 1.0)):
                alpha_TS = (q_TK @ k_SK.T / scale).softmax(dim=-1)
                norm_T = _jacobian_norm(alpha_TS)
                numbers[f"{how} gradient {width}"] = float(norm_T.median())
                numbers[f"{how} mean gradient {width}"] = float(norm_T.mean())
                numbers[f"{how} entropy {width}"] = float(torch.special.entr(alpha_TS).sum(dim=-1).mean())
        return numbers

    def judge(self, found: Measurements) -> list[ClaimPart]:
        def remaining(what: str) -> list[float]:
            ends = (found.values("all", f"{what} {width}") for width in (self.WIDTHS[-1], self.WIDTHS[0]))
            return [last / first for last, first in zip(*ends, strict=True)]

        return [
            at_most("undivided, the median gradient vanishes (share left)", remaining("undivided gradient"), 0.2),
            at_most("undivided, the mean gradient vanishes (share left)", remaining("undivided mean gradient"), 0.2),
            at_least("divided, the median gradient remains", remaining("divided gradient"), 0.8),
            at_least("divided, the mean gradient remains", remaining("divided mean gradient"), 0.8),
        ]

    def chart(self, found: Measurements) -> AnyChart:
        curves = [
            Curve(
                f"{how}, {name}",
                self.WIDTHS,
                *band(found, [("all", f"{how} {what} {width}") for width in self.WIDTHS]),
                style="dashed" if name == "mean" else "line",
                colour=colour,
            )
            for what, name in (("gradient", "median"), ("mean gradient", "mean"))
            for colour, how in enumerate(("divided", "undivided"))
        ]
        return Chart("Softmax over scores of wide keys", "d_k", "norm of the Jacobian", curves, log_x=True, log_y=True)


def _jacobian_norm(alpha_TS: Tensor) -> Tensor:
    """Return the Frobenius norm of diag(a) - a a^T for each row."""
    jacobian_TSS = torch.diag_embed(alpha_TS) - alpha_TS[:, :, None] * alpha_TS[:, None, :]
    return jacobian_TSS.flatten(1).norm(dim=1)


class Undivided(ScorePosition):
    """Undoes the division by sqrt(K): queries and keys are each multiplied by K^(1/4)."""

    def rotate(self, x_BHTK: Tensor, position: Tensor) -> Tensor:
        return x_BHTK * x_BHTK.shape[-1] ** 0.25


@final
class ScaleTraining(Claim):
    """`scale-gradient` uses random scores. Whether training suffers is another question, and the one that matters:
    Adam rescales small gradients, and the projections can learn any scale."""

    name = "scale-training"
    statement = "a Transformer with large d_k learns worse if scores are not divided by sqrt(d_k)"
    source = "Vaswani et al. 2017, section 3.2.1; Britz et al. 2017"
    protocol = (
        "Find the agent of a sentence: an encoder (2 layers, width 64, 1 head) with d_k of 8 and 512, scores divided "
        "or not, equal steps; loss on pairs of animals not in training."
    )
    rule = (
        "confirmed: at d_k = 512 the undivided loss is higher by more than 0.05 nats, and by more than at d_k = 8; "
        "refuted: shown to be wrong"
    )
    arms = ("divided 8", "undivided 8", "divided 512", "undivided 512")

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        how, width = arm.split()
        model = small(type="encoder", layers=2, mixer={"type": "softmax", "heads": 1, "key_width": int(width)})
        change = _undivide if how == "undivided" else None
        trained = train_small(agent_task(seed, classes=True), model, adam(budget(120, effort)), seed, change)
        return {"loss": loss(trained.model, trained.data), "exact": accuracies(trained.model, trained.data)[1]}

    def judge(self, found: Measurements) -> list[ClaimPart]:
        values = {arm: found.values(arm, "loss") for arm in self.arms}
        gaps = [
            [bad - good for bad, good in zip(values[f"undivided {width}"], values[f"divided {width}"], strict=True)]
            for width in (8, 512)
        ]
        return [
            greater("undivided, the loss at d_k = 512 is higher", values["undivided 512"], values["divided 512"], 0.05),
            greater("the gap is larger than at d_k = 8", gaps[1], gaps[0]),
        ]

    def chart(self, found: Measurements) -> AnyChart:
        curves = [
            Curve(how, (8, 512), *band(found, [(f"{how} {width}", "loss") for width in (8, 512)]))
            for how in ("divided", "undivided")
        ]
        return Chart("Finding the agent of a sentence", "d_k", "loss, nats", curves, log_x=True)


def _undivide(model: Model) -> None:
    for module in model.modules():
        if isinstance(module, Softmax):
            module.position = Undivided()


@final
class Heads(Claim):
    """Equal width: more heads are narrower heads, so parameters and FLOPs are the same."""

    name = "heads"
    statement = "several heads are better than one, and too many are worse again"
    source = "Vaswani et al. 2017, table 3, rows A"
    protocol = (
        "An encoder-decoder (1 + 1 layers, width 64) translates English number words up to 999,999 into French ones, "
        "word by word, with 1, 2, 4, 8, 16 and 32 heads and equal steps; loss on unseen numbers."
    )
    rule = (
        "confirmed: the mean loss of 4 and 8 heads is lower than that of 1 head and than that of 32; refuted: one of "
        "these is shown to be reversed"
    )
    COUNTS: ClassVar[Sequence[int]] = (1, 2, 4, 8, 16, 32)
    arms = tuple(map(str, COUNTS))

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        task = number_words()
        model = small(
            type="encoder-decoder", encoder_layers=1, decoder_layers=1, mixer={"type": "softmax", "heads": int(arm)}
        )
        trained = train_small(task, model, adam(budget(200, effort)), seed)
        return {"loss": loss(trained.model, trained.data), "exact": accuracies(trained.model, trained.data)[1]}

    def judge(self, found: Measurements) -> list[ClaimPart]:
        some = [
            (four + eight) / 2 for four, eight in zip(found.values("4", "loss"), found.values("8", "loss"), strict=True)
        ]
        return [
            greater("the loss of 1 head is higher than that of 4 and 8", found.values("1", "loss"), some),
            greater("the loss of 32 heads is higher than that of 4 and 8", found.values("32", "loss"), some),
        ]

    def chart(self, found: Measurements) -> AnyChart:
        curve = Curve("loss", self.COUNTS, *band(found, [(arm, "loss") for arm in self.arms]))
        return Chart("Heads at equal width (64)", "heads", "loss, nats", [curve], log_x=True)
