"""The contract of a task: what is learnt. A task turns data into batches, owns its loss and its metrics, and knows no model.

Lifecycle:

    data = config.prepare(folder)        # reads, checks and tokenises the data once, streaming; keeps ids memory-mapped in `folder`
    model = model_config.build(data.sizes)
    batch = data.batch(seed, index)      # any batch, at any time: addressed, not iterated
    loss = data.loss(model, batch, smoothing)
    scores = data.evaluate(predict, split)

Batches are addressed by (seed, index), so a resumed run never replays or skips. Padding stands on the right.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from torch import Tensor

from allyouneed.config import Config

PAD, BOS, EOS, UNK = 0, 1, 2, 3  # the first ids of every vocabulary
Split = Literal["valid", "test"]


@dataclass(frozen=True)
class Batch:
    """Padded ids. Which fields a task fills says what it needs: a source, a target to continue, or classes."""

    source_BS: Tensor | None = None
    source_valid_BS: Tensor | None = None  # None: nothing is padded
    input_BT: Tensor | None = None  # what the decoder is given: BOS first
    output_BT: Tensor | None = None  # what it should say: ends in EOS; PAD does not count
    class_B: Tensor | None = None

    @property
    def tokens(self) -> int:
        """How many predictions count: the unit of token budgets and of the loss."""
        if self.output_BT is not None:
            return int((self.output_BT != PAD).sum())
        assert self.class_B is not None
        return self.class_B.shape[0]


class Learner(Protocol):
    """What a loss needs of a model (models.base.Model satisfies it)."""

    def encode(self, source_BS: Tensor, valid_BS: Tensor | None = None) -> object: ...
