"""Claims about what came before: recurrences, what they lose with distance, and what attention and memory give back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from allyouneed.config import parse
from allyouneed.lab.charts import AnyChart, Chart, Curve
from allyouneed.lab.claims.base import Claim, Effort, Found, Numbers, Part, at_least, at_most, band, budget, given, more
from allyouneed.lab.claims.trial import adam, learn, right
from allyouneed.lab.flow import gradient_by_distance
from allyouneed.mixers import MIXERS
from allyouneed.models import Model
from allyouneed.tasks.algorithms import AlgorithmTask, CopyConfig
from allyouneed.tasks.bits import CopyBitsConfig


@final
class Vanishing(Claim):
    """One layer with random weights: what a loss at the end would teach the beginning."""

    name = "gradients"
    says = "gradients vanish exponentially with distance in an RNN, slower in an LSTM, and not in attention"
    source = "Bengio et al. 1994; Hochreiter and Schmidhuber 1997; Vaswani et al. 2017, section 4"
    protocol = (
        "One untrained causal layer (width 64) of each kind over 65 random vectors: the norm of the gradient of the"
        " last output with respect to each input, by distance; the slope of its logarithm over distances 1 to 64."
    )
    rule = (
        "confirmed: the logarithm for the RNN is straight (R2 above 0.95) and loses more than a factor of 100 from "
        "1 to 64; the LSTM's slope is less steep than the RNN's; attention loses less than a factor of 2; refuted: "
        "one of these is shown to be wrong"
    )
    arms = ("rnn", "gru", "lstm", "softmax")
    DISTANCES: ClassVar[Sequence[int]] = (1, 2, 4, 8, 16, 24, 32, 48, 64)

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        config = parse(MIXERS[arm], {"type": arm} | ({"heads": 4} if arm == "softmax" else {}))
        norms = dict(gradient_by_distance(config, 65, 64, seed=seed))
        place_T = np.arange(1, 65)
        log_T = np.log10([norms[distance] for distance in range(1, 65)])
        slope, height = np.polyfit(place_T, log_T, 1)
        left = ((log_T - slope * place_T - height) ** 2).sum() / max(((log_T - log_T.mean()) ** 2).sum(), 1e-300)
        numbers = {"slope": float(slope), "straight": float(1 - left), "lost": float(-63 * slope)}
        return numbers | {f"norm {distance}": norms[distance] for distance in self.DISTANCES}

    def judge(self, found: Found) -> list[Part]:
        return [
            at_least("the RNN's gradient falls exponentially (R2)", found.values("rnn", "straight"), 0.95),
            at_least("and by more than a factor of 100 (powers of ten)", found.values("rnn", "lost"), 2, 1),
            more("the LSTM's falls slower (slope)", found.values("lstm", "slope"), found.values("rnn", "slope")),
            at_most("attention's stays (powers of ten lost)", found.values("softmax", "lost"), float(np.log10(2))),
        ]

    def chart(self, found: Found) -> AnyChart:
        names = [f"norm {distance}" for distance in self.DISTANCES]
        curves = [Curve(arm, self.DISTANCES, *band(found, arm, names)) for arm in self.arms]
        return Chart("What the end can teach the beginning", "distance, positions", "gradient norm", curves, log_y=True)


def tested(model: Model, task: AlgorithmTask, length: int, seed: int) -> tuple[float, float]:
    """What is right of unseen items of one length: shares of tokens and of whole sequences."""
    one = task.model_copy(
        update={"lengths": (length, length), "test_lengths": (length, length), "valid": 1, "test": 200}
    )
    return right(model, one.prepare(Path(), seed + 1000), "test")


@final
class Length(Claim):
    """Copying asks for everything that was read, so a fixed vector fills up. Both have about as many parameters."""

    name = "seq2seq-length"
    says = "without attention, recurrent seq2seq degrades with the length of the source; with it, it does not"
    source = "Cho et al. 2014, arXiv:1409.1259; Bahdanau et al. 2014, arXiv:1409.0473, figure 2"
    protocol = (
        "Copy 1 to 16 of 10 symbols: an LSTM encoder whose last state starts an LSTM decoder (width 112), and "
        "Bahdanau's model (GRU, width 64), as many steps; share of right tokens for each length, the right prefix "
        "being given."
    )
    rule = (
        "confirmed: from length 4 to 16 the share falls by more than 0.2 without attention, by less than 0.1 with "
        "it; refuted: one of these is shown to be wrong; neither, unless with attention it is above 0.9 at length 4"
    )
    arms = ("none", "bahdanau")
    LENGTHS: ClassVar[Sequence[int]] = (4, 8, 12, 16)

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        task: dict[str, Any] = {"type": "copy", "lengths": [1, 16], "valid": 100, "test": 100, "batch": 32}
        size = {"cell": "lstm", "width": 112} if arm == "none" else {"cell": "gru", "width": 64}
        model = {"type": "seq2seq", "attention": arm, "embedding": 32, **size}
        learnt = learn(task, model, adam(budget(300, effort), lr=4e-3), seed)
        config = parse(CopyConfig, task)
        found = {length: tested(learnt.model, config, length, seed) for length in self.LENGTHS}
        return {
            f"{name} {length}": shares[place]
            for length, shares in found.items()
            for place, name in enumerate(("tokens", "exact"))
        }

    def judge(self, found: Found) -> list[Part]:
        def fall(arm: str) -> list[float]:
            ends = (found.values(arm, f"tokens {length}") for length in (4, 16))
            return [short - long for short, long in zip(*ends, strict=True)]

        parts = [
            at_least("without attention the share falls (4 to 16)", fall("none"), 0.2),
            at_most("with attention it does not", fall("bahdanau"), 0.1),
        ]
        return given(at_least("with attention 4 are copied", found.values("bahdanau", "tokens 4"), 0.9), parts)

    def chart(self, found: Found) -> AnyChart:
        names = {"none": "no attention (LSTM)", "bahdanau": "Bahdanau attention (GRU)"}
        curves = [
            Curve(names[arm], self.LENGTHS, *band(found, arm, [f"tokens {length}" for length in self.LENGTHS]))
            for arm in self.arms
        ]
        return Chart("Copying, by length", "symbols", "share of tokens right", curves)


@final
class LongCopy(Claim):
    """The paper's experiment in miniature: both have as many weights, and the LSTM is the machine's own controller."""

    name = "ntm-copy"
    says = "an LSTM fails to copy sequences longer than those of training; a Neural Turing Machine goes on"
    source = "Graves et al. 2014, arXiv:1410.5401, section 4.1"
    protocol = (
        "Copy vectors of 4 bits, 1 to 8 in training, then 8 and 24: a Neural Turing Machine (64 slots of 12, a "
        "feed-forward controller of 48) and an LSTM of as many weights, as many steps; share of right vectors, the "
        "lengths being known."
    )
    rule = (
        "confirmed: at 24 vectors the machine is right above 0.9 and the LSTM below 0.6; refuted: one of these is "
        "shown to be wrong; neither, unless the machine is right above 0.9 at 8 vectors, which it was trained on"
    )
    arms = ("ntm", "lstm")
    LENGTHS: ClassVar[Sequence[int]] = (4, 8, 16, 24)

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        task: dict[str, Any] = {"type": "copy-bits", "bits": 4, "lengths": [1, 8], "valid": 50, "test": 50, "batch": 16}
        model: dict[str, Any] = {"type": "ntm", "embedding": "bits", "bits": 4, "slots": 64, "slot_width": 12}
        model |= {"controller": "feedforward", "hidden": 48} if arm == "ntm" else {"read_heads": 0, "hidden": 32}
        model |= {"slots": 3, "slot_width": 1} if arm == "lstm" else {}
        train = {
            "budget": {"steps": budget(1000, effort)},
            "optimizer": {"type": "rmsprop", "lr": 5e-4, "momentum": 0.9, "beta2": 0.95, "epsilon": 1e-3},
            "schedule": {"type": "stable-decay", "warmup": 0.0, "decay": 0.6},
            "loss_per": "example",
            "clip": 10.0,
            "spike": 0.0,
        }
        learnt = learn(task, model, train, seed)
        config = parse(CopyBitsConfig, task)
        return {f"tokens {length}": tested(learnt.model, config, length, seed)[0] for length in self.LENGTHS}

    def judge(self, found: Found) -> list[Part]:
        parts = [
            at_least("the machine copies 24 vectors", found.values("ntm", "tokens 24"), 0.9),
            at_most("the LSTM does not", found.values("lstm", "tokens 24"), 0.6),
        ]
        return given(at_least("the machine has learnt to copy 8", found.values("ntm", "tokens 8"), 0.9), parts)

    def chart(self, found: Found) -> AnyChart:
        names = {"ntm": "Neural Turing Machine", "lstm": "LSTM"}
        curves = [
            Curve(names[arm], self.LENGTHS, *band(found, arm, [f"tokens {length}" for length in self.LENGTHS]))
            for arm in self.arms
        ]
        note = "Trained on 1 to 8 vectors."
        return Chart("Copying farther than in training", "vectors", "share of vectors right", curves, note=note)
