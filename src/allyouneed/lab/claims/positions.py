"""Claims about order: the need for positions, and positions beyond the training lengths."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, final

import torch

from allyouneed.lab.charts import AnyChart, Bar, Bars, Chart, Curve
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
    provided,
)
from allyouneed.lab.claims.small_runs import accuracies, adam, loss, scratch, shakespeare, small, train_small
from allyouneed.lab.claims.small_tasks import agent_task
from allyouneed.models import Model
from allyouneed.tasks.language import LanguageConfig


class _AgentClaim(Claim):
    """The measurements shared by both claims about order. Chance is 0.5: both animals are in the sentence."""

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        kind, how = arm.split()
        layers = {"layers": 2} if kind == "decoder" else {"encoder_layers": 2, "decoder_layers": 1}
        model = small(type=kind, positions="sinusoidal" if how == "with" else "none", **layers)
        trained = train_small(agent_task(seed, classes=False), model, adam(budget(120, effort)), seed)
        numbers = {"right": accuracies(trained.model, trained.data)[1]}
        if kind == "encoder-decoder":
            numbers["moved"] = _moved(trained.model)
        return numbers

    def judge(self, found: Measurements) -> list[ClaimPart]:
        with_, without = self.arms
        solved = at_least("with positions the task is solved", found.values(with_, "right"), 0.9)
        return provided([solved], [at_most("without positions it is at chance", found.values(without, "right"), 0.6)])

    def chart(self, found: Measurements) -> AnyChart:
        ends = {arm: found.interval(arm, "right") for arm in self.arms}
        bars = [Bar(f"{arm} positions", end.mean, end.low, end.high) for arm, end in ends.items()]
        return Bars("Finding the agent of a sentence", "share correct (chance: 0.5)", bars)


@final
class Order(_AgentClaim):
    """Equivariance to permutations is measured in the trained model: no training can change it."""

    name = "order"
    statement = 'without positions an encoder cannot distinguish "the cat chased the dog" from "the dog chased the cat"'
    source = "Vaswani et al. 2017, section 3.5"
    protocol = (
        "Find the agent of a sentence: 24 animals, 4 verbs, pairs that training has in neither order. An "
        "encoder-decoder (2 + 1 layers, width 64) with sinusoidal positions and without any. Also the deviation of the "
        "trained encoder from permuting its outputs with its inputs (float64)."
    )
    rule = (
        "confirmed: without positions the encoder-decoder's accuracy is below 0.6 and its encoder is equivariant to "
        "1e-6; refuted: one of these is shown to be wrong; precondition: with positions it is above 0.9"
    )
    changed = "Was one claim about Transformers in general, which decoders refute; decoders are now a separate claim."
    arms = ("encoder-decoder with", "encoder-decoder without")

    def judge(self, found: Measurements) -> list[ClaimPart]:
        moved = at_most("without positions an encoder only permutes", found.values(self.arms[1], "moved"), 1e-6, 12)
        return [*super().judge(found), moved]


@final
class OrderInDecoder(_AgentClaim):
    """A causal mask reveals the order: the first position sees one vector, the second two."""

    name = "order-decoder"
    statement = 'without positions a decoder cannot distinguish "the cat chased the dog" from "the dog chased the cat"'
    source = "Vaswani et al. 2017, section 3.5, in general; contradicted by Haviv et al. 2022, arXiv:2203.16634"
    protocol = (
        "Find the agent of a sentence: 24 animals, 4 verbs, pairs that training has in neither order. A decoder (2 "
        "layers, width 64) with sinusoidal positions and without any."
    )
    rule = (
        "confirmed: without positions the decoder's accuracy is below 0.6; refuted: shown to be wrong; precondition: "
        "with positions it is above 0.9"
    )
    changed = Order.changed
    arms = ("decoder with", "decoder without")


def _moved(model: Model) -> float:
    """Return the largest difference between Encoder(permuted x) and permuted Encoder(x)."""
    model = model.double().eval()
    order_S = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    source_BS = torch.arange(4, 16).unsqueeze(0)
    with torch.no_grad():
        plain_BSD, moved_BSD = (model.encode(ids_BS).x_BSD for ids_BS in (source_BS, source_BS[:, order_S]))
    return float((moved_BSD - plain_BSD[:, order_S]).abs().max())


@final
class Extrapolation(Claim):
    """Press et al. 2022 in miniature: a language model reads longer texts than in training. Every token is predicted
    with at least half a window of context, so a longer window can only help models that can use it."""

    name = "positions"
    statement = (
        "learned and sinusoidal positions are equally good, and sinusoidal ones extrapolate beyond the training lengths"
    )
    source = "Vaswani et al. 2017, section 3.5 and table 3, row E; Press et al. 2022, arXiv:2108.12409"
    protocol = (
        "Characters of Shakespeare, a decoder (2 layers, width 64) trained on windows of 64; loss on held-out text "
        "read in windows of 64, 128 and 256, for each kind of positions."
    )
    rule = (
        "confirmed: the losses of learned and sinusoidal positions differ by less than 0.03 nats in windows of 64, "
        "and the sinusoidal loss in windows of 256 is at most 0.03 above its own in windows of 64; refuted: one of "
        "these is shown to be wrong"
    )
    arms = ("learned", "sinusoidal", "none", "shaw", "t5", "alibi", "rotary")
    WINDOWS: ClassVar[Sequence[int]] = (64, 128, 256)

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        model = small(type="decoder", layers=2, positions=arm)
        trained = train_small(shakespeare(64, 16), model, adam(budget(250, effort)), seed)
        return {f"loss {window}": _loss_in(trained.model, window) for window in self.WINDOWS}

    def judge(self, found: Measurements) -> list[ClaimPart]:
        def loss_of(arm: str, window: int) -> list[float]:
            return found.values(arm, f"loss {window}")

        beyond = [far - near for far, near in zip(loss_of("sinusoidal", 256), loss_of("sinusoidal", 64), strict=True)]
        return [
            equivalent(
                "learned and sinusoidal tie in windows of 64", loss_of("learned", 64), loss_of("sinusoidal", 64), 0.03
            ),
            at_most("sinusoidal positions extrapolate (loss in windows of 256 minus 64)", beyond, 0.03),
        ]

    def chart(self, found: Measurements) -> AnyChart:
        curves = [
            Curve(arm, self.WINDOWS, *band(found, [(arm, f"loss {window}") for window in self.WINDOWS]))
            for arm in self.arms
        ]
        note = "Trained on windows of 64 characters."
        return Chart("Beyond the training window", "window, characters", "loss, nats", curves, True, note=note)


def _loss_in(model: Model, window: int) -> float:
    """Return the loss on the same text, read in windows of another length."""
    task = LanguageConfig.model_validate(shakespeare(window, max(1, 1024 // window)))
    folder: Path = scratch("shakespeare in windows")
    return loss(model, task.prepare(folder, 0))
