"""Claims about depth: the purpose of residuals, norms and warm-up."""

from collections.abc import Sequence
from itertools import product
from typing import ClassVar, final

from torch import Tensor, nn

from allyouneed.block import Block
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
    equivalent,
    greater,
    provided,
)
from allyouneed.lab.claims.small_runs import adam, classifier_scores, small, train_small
from allyouneed.lab.claims.small_tasks import agent_task
from allyouneed.models import Model

CHANCE = 0.5  # the agent is one of two animals


@final
class Depth(Claim):
    """Two layers solve the task; deeper stacks have nothing to add, so any loss is due to depth. Each stack has the
    best of three learning rates, selected by the measured score, which favours the stacks expected to fail. Once all
    answers are correct, no other rate is tried."""

    name = "depth"
    statement = "residual connections and layer norm make depth trainable: without either, deep stacks do not learn"
    source = "He et al. 2016, arXiv:1512.03385; Vaswani et al. 2017, section 3.1"
    protocol = (
        "Find the agent of a sentence: an encoder of 2, 8 and 24 layers (width 64, pre-norm) with both, without "
        "residuals and without norms; equal steps, the best of the learning rates 0.001, 0.0003 and 0.003; share of "
        "correct answers (chance is 0.5, which is also assigned to a model whose loss is NaN)."
    )
    rule = (
        "confirmed: with 24 layers above 0.9 with both, below 0.6 without residuals and below 0.6 without norms; "
        "refuted: one of these is shown to be wrong; precondition: above 0.9 with both"
    )
    changed = (
        "At first there was one learning rate (0.001), at which the first seed of 24 layers without norms ended with a "
        "NaN loss, which counted as 0.04. Stacks without both are no longer measured."
    )
    RATES: ClassVar[Sequence[float]] = (1e-3, 3e-4, 3e-3)
    KINDS: ClassVar[Sequence[str]] = ("both", "no residuals", "no norms")
    LAYERS: ClassVar[Sequence[int]] = (2, 8, 24)
    arms = tuple(map(" ".join, product(KINDS, map(str, LAYERS))))

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        kind, _, layers = arm.rpartition(" ")
        model = small(type="encoder", layers=int(layers), norm="none" if kind == "no norms" else "pre")
        change = _without_residuals if kind == "no residuals" else None
        tried: list[dict[str, float]] = []
        for rate in self.RATES:
            train = adam(budget(120, effort), lr=rate, warmup=0.1)
            trained = train_small(agent_task(seed, classes=True), model, train, seed, change)
            tried.append({**classifier_scores(trained, CHANCE), "rate": rate})
            if tried[-1]["right"] == 1:
                break
        return {
            **max(tried, key=lambda numbers: (numbers["right"], -numbers["loss"])),
            "rates tried": float(len(tried)),
            "rates diverged": sum(numbers["diverged"] for numbers in tried),
        }

    def judge(self, found: Measurements) -> list[ClaimPart]:
        parts = [
            at_most(f"24 layers with {kind} do not", found.values(f"{kind} 24", "right"), 0.6)
            for kind in ("no residuals", "no norms")
        ]
        return provided([at_least("24 layers with both learn", found.values("both 24", "right"), 0.9)], parts)

    def chart(self, found: Measurements) -> AnyChart:
        curves = [
            Curve(kind, self.LAYERS, *band(found, [(f"{kind} {layers}", "right") for layers in self.LAYERS]))
            for kind in self.KINDS
        ]
        note = "The best of three learning rates each."
        return Chart("Accuracy over depth", "layers", "share correct", curves, lines={"chance": CHANCE}, note=note)


def _without_residuals(model: Model) -> None:
    def replace(x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        return y

    for module in model.modules():
        if isinstance(module, Block):
            module.add_residual = replace  # type: ignore[method-assign]


@final
class WarmUp(Claim):
    """Three learning rates: the need for a warm-up shows in how many of them work, not at a single chosen one."""

    name = "warm-up"
    statement = "post-norm needs a warm-up of the learning rate, pre-norm does not"
    source = "Xiong et al. 2020, arXiv:2002.04745; Vaswani et al. 2017, section 5.3"
    protocol = (
        "Find the agent of a sentence: an encoder of 8 layers (width 64), post-norm and pre-norm, Adam at 0.002, 0.006 "
        "and 0.02 with linear decay, with a warm-up over the first quarter of the steps and without; share of correct "
        "answers."
    )
    rule = (
        "confirmed: averaged over the rates, post-norm is correct more often with warm-up than without, by more than "
        "0.1, and pre-norm differs by less than 0.1; refuted: one of these is shown to be wrong; precondition: "
        "post-norm with warm-up is above 0.9 at the lowest rate"
    )
    changed = (
        "At first there was one learning rate (0.002), at which the first seed's post-norm layers learnt without any "
        "warm-up. A claim about a need has to be tested where the need can arise."
    )
    KINDS: ClassVar[Sequence[str]] = ("post with", "post without", "pre with", "pre without")
    RATES: ClassVar[Sequence[str]] = ("0.002", "0.006", "0.02")
    arms = tuple(map(" ".join, product(KINDS, RATES)))

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        norm, how, rate = arm.split()
        train = adam(budget(120, effort), lr=float(rate), warmup=0.25 if how == "with" else 0.0)
        trained = train_small(agent_task(seed, classes=True), small(type="encoder", layers=8, norm=norm), train, seed)
        return classifier_scores(trained, CHANCE)

    def judge(self, found: Measurements) -> list[ClaimPart]:
        means = {}
        for kind in self.KINDS:
            columns = [found.values(f"{kind} {rate}", "right") for rate in self.RATES]
            means[kind] = [sum(values) / len(values) for values in zip(*columns, strict=True)]
        needed = at_least("post-norm with warm-up learns at 0.002", found.values("post with 0.002", "right"), 0.9)
        parts = [
            greater("post-norm is better with warm-up", means["post with"], means["post without"], 0.1),
            equivalent("pre-norm is as good without", means["pre with"], means["pre without"], 0.1),
        ]
        return provided([needed], parts)

    def chart(self, found: Measurements) -> AnyChart:
        curves = [
            Curve(
                f"{kind.replace(' ', '-norm ')} warm-up",
                [float(rate) for rate in self.RATES],
                *band(found, [(f"{kind} {rate}", "right") for rate in self.RATES]),
            )
            for kind in self.KINDS
        ]
        lines = {"chance": CHANCE}
        return Chart(
            "Warm-up and placement of the norm (8 layers)", "learning rate", "share correct", curves, True, lines=lines
        )
