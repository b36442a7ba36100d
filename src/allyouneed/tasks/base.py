"""The contract of a task: what is learnt. It turns data into batches, owns its loss and metrics, and knows no model.

Lifecycle:

    data = config.prepare(folder, seed)    # reads, checks and tokenises once; keeps ids memory-mapped there
    model = model_config.build(data.sizes)
    batch = data.batch(seed, index)        # any batch, at any time: addressed, not iterated
    loss = batch_loss(model, batch, smoothing)       # tasks/loss.py
    scores = data.measure(hypotheses, references)    # of decoded text; losses are measured by training/evaluate.py

Batches are addressed by (seed, index), so a resumed run never replays or skips. Padding stands on the right.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from torch import Tensor

from allyouneed.config import Config
from allyouneed.sizes import Sizes, Traits
from allyouneed.text.specials import PAD, UNK

if TYPE_CHECKING:
    from allyouneed.text.codec import Codec

NO_CLASS = -1  # where a position has no class to be learnt
FIRST_CLASS = UNK + 1  # the id by which a decoder says the first class of a position
Split = Literal["valid", "test"]


@dataclass(frozen=True)
class Batch:
    """Padded ids. Which fields a task fills says what it needs: a source, a target to continue, or classes."""

    source_BS: Tensor | None = None
    source_mask_BS: Tensor | None = None  # None: nothing is padded
    input_BT: Tensor | None = None  # what the decoder is given: BOS first
    output_BT: Tensor | None = None  # what it should say: ends in EOS; PAD does not count
    class_B: Tensor | None = None
    class_BS: Tensor | None = None  # of each position of the source; NO_CLASS does not count
    segment: int | None = None  # read the target so many positions at a time, through the state; None: at once

    @property
    def examples(self) -> int:
        """How many rows there are."""
        rows = next(rows for rows in (self.output_BT, self.class_BS, self.class_B) if rows is not None)
        return rows.shape[0]

    @property
    def segments(self) -> int:
        """How many losses `tasks.loss.losses` gives, one after the other."""
        if self.segment is None or self.input_BT is None:
            return 1
        return -(-self.input_BT.shape[1] // self.segment)

    @property
    def tokens(self) -> int:
        """How many predictions count: the unit of token budgets and of the loss."""
        if self.output_BT is not None:
            return int((self.output_BT != PAD).sum())
        if self.class_BS is not None:
            return int((self.class_BS != NO_CLASS).sum())
        assert self.class_B is not None
        return self.class_B.shape[0]


@dataclass(frozen=True)
class Loss:
    """The summed loss of a batch and how many predictions it sums over."""

    total: Tensor  # nats, smoothed if training asks for it; differentiable
    count: int
    beside: Tensor | float = 0.0  # what mixers learn by losses of their own; no part of the score

    @property
    def objective(self) -> Tensor:
        """What is minimised."""
        return self.total + self.beside


@dataclass(frozen=True)
class Score:
    """A number with everything that is needed to get the same number again."""

    name: str  # "bleu", "chrf", "exact", "accuracy", "perplexity", "bits_per_char", "loss"
    value: float
    signature: str  # e.g. sacreBLEU's nrefs:1|case:mixed|...; or what was counted: "n:1000|greedy"
    higher_is_better: bool = True


@dataclass(frozen=True)
class Units:
    """The same text, counted three ways: bits per character = nats per token x tokens / characters / ln 2."""

    tokens: int
    characters: int
    bytes: int
    how: str = ""  # what a signature must say of the windows


class Learner(Protocol):
    """What a loss needs of a model; every `models.Model` has it."""

    head: Any

    def condition(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Any: ...
    def start(self, memory: Any = None) -> Any: ...
    def hidden(self, tokens_BT: Tensor, state: Any, mask_BT: Tensor | None = None) -> tuple[Tensor, Any]: ...
    def classify(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Tensor: ...


class TaskConfig(Config, ABC):
    """The settings of one task."""

    summary: ClassVar[str]
    paper: ClassVar[str] = ""
    kinds: ClassVar[frozenset[str]]  # the kinds of model that can learn it
    each: ClassVar[bool] = False  # whether an encoder answers for each position

    type: str

    def traits(self) -> Traits:
        """Return the form of the data, which a model config checks."""
        return Traits(self.type, per_position=self.each)

    @abstractmethod
    def prepare(self, folder: Path, seed: int) -> "TaskData":
        """Reads, checks and tokenises the data; keeps it in `folder`, and reuses it if the sources are unchanged."""


class TaskData(ABC):
    """A prepared task."""

    sizes: Sizes
    notes: list[str]  # what was skipped and why, one line each, for the log and the model card
    codec: "Codec"  # text <-> ids; `codec.save(folder)` writes all that a finished model needs of its task
    epoch: int | None = None  # batches an epoch; None: windows or generated items, there are no epochs
    train_tokens: int | None = None  # different ones to learn from; None: not counted, or without end

    @abstractmethod
    def batch(self, seed: int, index: int) -> Batch:
        """Training batch number `index`: always the same for the same seed."""

    @abstractmethod
    def held_out(self, split: Split) -> Iterator[Batch]:
        """Every item of a held-out split once, in batches."""

    @abstractmethod
    def examples(self, split: Split) -> list[tuple[str, str]]:
        """(source, reference) texts of a held-out split, for metrics that need decoded text; empty: there are none."""

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        """Scores of decoded text; the first one chooses the best checkpoint."""
        return []

    def units(self, split: Split) -> "Units | None":
        """What the predictions of `held_out` stand for, if a loss per character or byte means something."""
        return None
