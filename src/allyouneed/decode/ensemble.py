"""An ensemble: several models that generate one target together.

    P(v | y_<t, x) = 1/M sum_m P_m(v | y_<t, x)        computed as  logsumexp_m log P_m  -  log M

Every model reads the same source ids and the same target ids, each with its own state. To all decoding methods an
ensemble is one more model: `hidden` returns the vectors of all members side by side, and the head returns log P.
Members may be of different architectures, as long as their ids mean the same.

Cost: a step costs as much as a step of each member.
Paper: Sutskever et al. 2014, arXiv:1409.3215, section 3.6 (models); Sennrich et al. 2016, W16-2323 (checkpoints).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from allyouneed.decode.base import as_float32
from allyouneed.errors import ConfigError
from allyouneed.inference.optimize import is_optimized, refuse_changes
from allyouneed.mixers import State
from allyouneed.models import Model
from allyouneed.models.base import Head


@dataclass(frozen=True)
class EnsembleState:
    """The states of all members."""

    members: tuple[State, ...]


def mean_probability(logits: Sequence[Tensor]) -> Tensor:
    """Return the log of the mean probabilities (..., V), given the logits of each member."""
    logprobs = torch.stack([as_float32(one).log_softmax(dim=-1) for one in logits])
    return logprobs.logsumexp(dim=0) - math.log(len(logits))


@final
class EnsembleHead(Head):
    """The heads of all members: their vectors side by side become log P."""

    def __init__(self, heads: Sequence[Head]) -> None:
        nn.Module.__init__(self)
        self._heads, self._widths, self.cap, self.bias_V = tuple(heads), [head.width for head in heads], None, None

    @property
    def size(self) -> int:
        return self._heads[0].size

    @property
    def width(self) -> int:
        return sum(self._widths)

    @property
    def like(self) -> Tensor:
        return as_float32(self._heads[0].like)

    def forward(self, x: Tensor) -> Tensor:
        parts = zip(self._heads, x.split(self._widths, dim=-1), strict=True)
        return mean_probability([head(part) for head, part in parts])


@final
class Ensemble(Model):
    """Models with the same ids. Its distribution is the mean of theirs."""

    def __init__(self, members: Sequence[Model]) -> None:
        super().__init__()
        for member in members:
            if member.kind == "encoder":
                raise ConfigError("an ensemble generates targets, and an encoder does not; use models that translate")
        sizes = sorted({member.head.size for member in members})
        if len(sizes) != 1:
            raise ConfigError(f"an ensemble of models with {' and '.join(map(str, sizes))} target ids; use equal ones")
        self.members = nn.ModuleList(members)
        self._members = tuple(members)
        # A decoder's text includes the source. The limit of an ensemble is that of its shortest member.
        self.kind = "decoder" if any(member.kind == "decoder" for member in members) else "encoder-decoder"
        self.config = members[0].config
        self.head = EnsembleHead([member.head for member in members])
        if all(is_optimized(member) for member in members):
            refuse_changes(self)

    @property
    def first(self) -> Model:
        """Return the first member, for what only one model can do: alignments."""
        return self._members[0]

    @property
    def longest(self) -> int | None:
        return min((member.longest for member in self._members if member.longest is not None), default=None)

    @property
    def longest_source(self) -> int | None:
        limits = [member.longest_source for member in self._members]
        return min((limit for limit in limits if limit is not None), default=None)

    def condition(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> EnsembleState:
        return EnsembleState(tuple(member.condition(source_BS, mask_BS) for member in self._members))

    def hidden(
        self, tokens_BT: Tensor, state: EnsembleState, mask_BT: Tensor | None = None
    ) -> tuple[Tensor, EnsembleState]:
        """Return the vectors (B, T, D) of all members, side by side, and the state after the tokens."""
        found = [
            member.hidden(tokens_BT, own, mask_BT) for member, own in zip(self._members, state.members, strict=True)
        ]
        return torch.cat([x_BTD for x_BTD, _ in found], dim=-1), EnsembleState(tuple(own for _, own in found))

    def advance(self, token_B: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        found = [member.advance(token_B, own) for member, own in zip(self._members, state.members, strict=True)]
        return mean_probability([logits for logits, _ in found]), EnsembleState(tuple(own for _, own in found))

    def flops(self, source: int, target: int) -> int:
        return sum(member.flops(source, target) for member in self._members)
