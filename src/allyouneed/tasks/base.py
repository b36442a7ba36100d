"""The contract of a task: what is learnt. It turns data into batches and owns its loss and metrics, for any model.

Lifecycle:

    data = config.prepare(folder, seed)    # reads, checks and tokenises once; keeps memory-mapped ids in the folder
    model = model_config.build(data.sizes)
    batch = data.batch(seed, index)        # any batch, at any time: addressed, not iterated
    loss = batch_loss(model, batch, smoothing)       # tasks/loss.py
    scores = data.measure(hypotheses, references)    # of decoded text; losses are measured by training/evaluate.py

Batches are addressed by (seed, index), so a resumed run never replays or skips any. Padding is on the right.
`tests/contracts/test_tasks.py` checks these laws for every task.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, final

from torch import Tensor

from allyouneed.config import Config
from allyouneed.errors import ConfigError, DataError
from allyouneed.sizes import Sizes, Traits
from allyouneed.text.checks import require_short, room
from allyouneed.text.codec import Codec
from allyouneed.text.corpus_settings import file_names, pairs
from allyouneed.text.lines import Pair, Skips, filled
from allyouneed.text.ragged import Ragged
from allyouneed.text.specials import PAD, UNK

NO_CLASS = -1  # the class of a position that does not count
FIRST_CLASS = UNK + 1  # the id that a decoder generates for the first class of a position
FILE_ROWS = 32  # texts of a file in a batch
Split = Literal["valid", "test"]


@dataclass(frozen=True)
class Batch:
    """Padded ids. A task fills the fields that its models need: a source, a target to continue, or classes."""

    source_BS: Tensor | None = None
    source_mask_BS: Tensor | None = None  # None: no padding
    input_BT: Tensor | None = None  # what the decoder reads: starts with BOS
    output_BT: Tensor | None = None  # what it should generate: ends in EOS; PAD does not count
    class_B: Tensor | None = None
    class_BS: Tensor | None = None  # of each position of the source; NO_CLASS does not count
    segment: int | None = None  # positions of the target read at once, with the state carried on; None: all

    @property
    def examples(self) -> int:
        """Number of rows."""
        rows = next(rows for rows in (self.output_BT, self.class_BS, self.class_B) if rows is not None)
        return rows.shape[0]

    @property
    def segments(self) -> int:
        """Number of losses that `tasks.loss.losses` yields."""
        if self.segment is None or self.input_BT is None:
            return 1
        return -(-self.input_BT.shape[1] // self.segment)

    @property
    def tokens(self) -> int:
        """Number of predictions that count: the unit of token budgets and of the loss."""
        if self.output_BT is not None:
            return int((self.output_BT != PAD).sum())
        if self.class_BS is not None:
            return int((self.class_BS != NO_CLASS).sum())
        assert self.class_B is not None
        return self.class_B.shape[0]


@dataclass(frozen=True)
class Loss:
    """The summed loss of a batch and the number of predictions it sums over."""

    total: Tensor  # nats, smoothed during training; differentiable
    count: int
    beside: Tensor | float = 0.0  # auxiliary losses of mixers; not part of the score

    @property
    def objective(self) -> Tensor:
        """What training minimises."""
        return self.total + self.beside


@dataclass(frozen=True)
class Score:
    """A number with everything that is needed to reproduce it."""

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
    how: str = ""  # how the text was cut into windows, for the signature


class Learner(Protocol):
    """The part of `models.Model` that a loss needs."""

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
    per_position: ClassVar[bool] = False  # whether each position of the source has a class
    translates: ClassVar[bool] = False  # whether a text of words becomes another text of words
    has_sentences: ClassVar[bool] = False  # whether a text consists of sentences that can be translated one by one

    type: str

    def traits(self) -> Traits:
        """Return the form of the data, which a model config checks."""
        return Traits(self.type, per_position=self.per_position)

    def largest_batch(self) -> tuple[str, int] | None:
        """Return the setting that bounds a batch, with its value, and the most tokens of a batch, if there is one."""
        return None

    def languages(self) -> tuple[str, str] | None:
        """Return the source and the target language, if the settings name them."""
        return None

    def example(self, seed: int) -> str | None:
        """Return a held-out text read straight from the sources. None: only prepared data contains texts."""
        return None

    @abstractmethod
    def prepare(self, folder: Path, seed: int) -> "TaskData":
        """Read, check and tokenise the data into `folder`, or reuse what is there if the sources are unchanged."""

    def prepare_with(self, codec: Codec, folder: Path, seed: int) -> "TaskData":
        """Prepare the data in the ids of a model that is trained on, with its tokenizers instead of new ones.

        Raise ConfigError if the task cannot use them. A task whose ids follow from its settings has no others.
        """
        return self.prepare(folder, seed)

    def as_batch(self, codec: Codec, items: Sequence[Pair]) -> Batch:
        """Return (source, target) texts as a batch. Raise DataError if a source and its target do not fit."""
        raise ConfigError(f"task {self.type!r} does not learn from pairs of texts")

    def read_pairs(self, files: Any) -> Iterator[Pair]:
        """Yield the (source, target) texts of [source file, target file], of one file, or of corpora."""
        return pairs(files)

    def read_rows(self, files: Any) -> Iterator[Pair]:
        """Yield the rows of files as `evaluation.probabilities` scores them: pairs, or texts without a source."""
        return self.read_pairs(files)

    def from_files(self, codec: Codec, files: Any, longest: int | None = None) -> "TaskData":
        """Return files, or corpora, as evaluation data of this task, in the ids of a finished model.

        `longest`: source ids that the model has positions for; None: no limit.
        """
        return FilePairs(self, codec, files, longest)

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        """Score decoded text. The first score selects the best checkpoint."""
        return []


class TaskData(ABC):
    """The prepared data of a task: training batches, held-out splits and the codec."""

    task: TaskConfig
    sizes: Sizes
    notes: list[str]  # what was skipped and why, one line each, for the log and the model card
    codec: Codec  # text <-> ids; `codec.save(folder)` writes all that a finished model needs of its task
    epoch: int | None = None  # batches in an epoch; None: windows or generated items, without epochs
    train_tokens: int | None = None  # size of the training data; None: not counted, or unlimited

    @abstractmethod
    def batch(self, seed: int, index: int) -> Batch:
        """Return training batch number `index`: always the same for the same seed."""

    @abstractmethod
    def held_out(self, split: Split) -> Iterator[Batch]:
        """Yield every item of a held-out split once, in batches."""

    @abstractmethod
    def examples(self, split: Split) -> list[tuple[str, str]]:
        """Return the (source, reference) texts of a held-out split, for metrics of decoded text; may be empty."""

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        """Score decoded text. The first score selects the best checkpoint."""
        return self.task.measure(hypotheses, references)

    def units(self, split: Split) -> Units | None:
        """Return the tokens, characters and bytes that `held_out` predicts, if a loss per character is meaningful."""
        return None

    def train_ids(self) -> tuple[Ragged, Ragged]:
        """Return the ids of all training sources and targets, if the task translates."""
        raise ConfigError(f"task {self.task.type!r} does not translate one text into another")


@final
class FilePairs(TaskData):
    """Pairs of texts from files, in the ids of a finished model: evaluation data only."""

    def __init__(self, task: TaskConfig, codec: Codec, files: Any, longest: int | None = None) -> None:
        self.task, self.codec, self._longest = task, codec, longest
        assert codec.source is not None
        size = len(codec.classes) if codec.classes is not None else codec.target.size if codec.target else 0
        self.sizes = Sizes(codec.source.size, size)
        skips = Skips(" and ".join(file_names(files)))
        self._pairs = list(self._checked(filled(task.read_pairs(files), skips), skips))
        self.notes = skips.notes()
        if not self._pairs:
            raise DataError(f"{skips.where}: no pair among {skips.read:,} lines; should hold at least one")

    def _checked(self, rows: Iterator[Pair], skips: Skips) -> Iterator[Pair]:
        """Yield the pairs; raise DataError at the first one that the model cannot read or generate."""
        classes = self.codec.classes
        for source, target in rows:
            require_short(self.codec.source, [source], skips.where, skips.read - 1, room(self.codec, self._longest))
            if self.codec.per_position:
                self.task.as_batch(self.codec, [(source, target)])
            elif classes is not None and target not in classes:
                known = ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "")
                raise DataError(
                    f"{skips.where}: line {skips.read}: {target!r} is not a class of this model; known: {known}"
                )
            if classes is None:
                require_short(self.codec.target, [target], skips.where, skips.read - 1)
            yield source, target

    def batch(self, seed: int, index: int) -> Batch:
        raise NotImplementedError("files are for evaluation")

    def held_out(self, split: Split) -> Iterator[Batch]:
        by_length = sorted(self._pairs, key=lambda pair: len(pair[0]))
        for begin in range(0, len(by_length), FILE_ROWS):
            yield self.task.as_batch(self.codec, by_length[begin : begin + FILE_ROWS])

    def examples(self, split: Split) -> list[tuple[str, str]]:
        return self._pairs
