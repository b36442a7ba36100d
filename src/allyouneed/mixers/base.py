"""The contract of a mixer: a layer that moves information between positions.

    y, state = mixer(x_BTD, mask_BT=..., state=..., memory=...)

One method serves whole sequences, segments and single steps: with a state, `x` holds only the new positions.
`tests/contracts/` holds every clause of the contract as a property test over the whole table `MIXERS`:

1. shape kept; equal to its naive oracle, forward and gradient, in float64;
2. causal: the future changes nothing, and any chunking through `state` equals the whole; so do single `advance`
   steps;
3. padding, wherever it is and whatever it holds (Inf and NaN included), and other rows of a batch change nothing; a
   fully padded row gives no NaN;
4. `config.cost` states FLOPs, bytes of state, sequential steps and path length; the FLOPs equal those that torch's
   `FlopCounterMode` counts: matrix products, not elementwise work;
5. it learns to copy;
6. `roles` lists its roles; any other role raises ConfigError;
7. states are values, and rows of different ages can join and leave a batch;
8. under autocast and in half precision it is as exact as the type;
9. it creates tensors only on the device of its inputs.

Shape letters, everywhere: B batch, T new (target) positions, S positions read (source), D width, H heads, K head width,
F hidden width, V vocabulary, W window, M memory slots or features, R rank, relative distances or value width, N items
of any kind; a digit is an axis of that size.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from allyouneed.config import Config
from allyouneed.errors import ConfigError
from allyouneed.positions import PositionConfig, ScorePosition
from allyouneed.sizes import Traits

Role = Literal["causal", "bidirectional", "cross"]
Family = Literal["global attention", "local attention", "recurrence and convolution"]
State = Any  # a dataclass of tensors, batch first; `select_rows` (parts/state.py) works on any of them


def zero_padding(x_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
    """Replace padding by zeros, since it may hold anything: zero times Inf or NaN is NaN, also in a gradient."""
    return x_BTD if mask_BT is None else x_BTD.masked_fill(~mask_BT.unsqueeze(-1), 0.0)


@dataclass(frozen=True)
class Memory:
    """What a cross mixer reads: vectors and their padding mask (None: all are real)."""

    x_BSD: Tensor
    mask_BS: Tensor | None = None

    def without_padding(self) -> Tensor:
        """Return the vectors with zeros at padding."""
        return zero_padding(self.x_BSD, self.mask_BS)

    def select(self, rows_B: Tensor) -> "Memory":
        """Return the memory of some rows of the batch."""
        mask_BS = None if self.mask_BS is None else self.mask_BS.index_select(0, rows_B)
        return Memory(self.x_BSD.index_select(0, rows_B), mask_BS)


@dataclass(frozen=True)
class Cost:
    """The cost of one sequence in one mixer: the columns of table 1 of Vaswani et al. 2017, and memory."""

    flops: int  # of a forward pass; a multiplication and an addition are two
    state_bytes: int  # kept after the last position to compute the next one, in float32
    sequential: int  # operations that must wait for each other
    path: int | None  # layers between the first and the last position; None: the first never reaches the last


@dataclass(frozen=True)
class Theory:
    """The cost of one layer as its paper states it, in n (length) and d (width): a row of table 1.

    The exponents are those of the leading term. For attention that is the term of the reading itself, as in the paper;
    the four projections, O(n d²), are part of every formula here but not of the paper's table.
    """

    formula: str  # FLOPs of a layer, O(..)
    in_length: float  # exponent of n in the leading term
    in_width: float  # exponent of d in the leading term
    sequential: str  # operations that must wait for each other; exactly "n" if it loops over positions
    path: str  # layers between the first and the last position
    leads_at: tuple[int, ...] | None = None  # lengths at which the leading term dominates; None: chosen for you

    @property
    def loops(self) -> bool:
        """Return True if it computes position by position. `allyouneed cost` then uses shorter sequences."""
        return self.sequential == "n"


class MixerConfig(Config, ABC):
    """The settings of one mechanism: frozen and validated, with its cost and everything else that is specific to it."""

    summary: ClassVar[str]  # one line for `allyouneed list`
    paper: ClassVar[str]
    roles: ClassVar[frozenset[Role]]
    theory: ClassVar[Theory]
    family: ClassVar[Family]  # mixers of a family share a chart of `allyouneed cost`
    takes_positions: ClassVar[bool] = False  # whether relative positions can act inside the score
    reads_itself: ClassVar[bool] = True  # False if a position may read others only
    reads_by_content: ClassVar[bool] = False  # vectors decide whether a position is read at all (hashing)

    type: str

    @classmethod
    def settings_for(cls, length: int) -> dict[str, object]:
        """Return the settings that should follow the length of a sequence; the others keep their defaults."""
        return {}

    @abstractmethod
    def build(self, width: int, *, role: Role = "causal", position: ScorePosition | None = None) -> "Mixer":
        """Return the mixer with random weights, for vectors of `width`."""

    @abstractmethod
    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        """Return the cost of one sequence of `length` (a cross mixer reads `memory` slots; None: `length`)."""

    def check_task(self, task: Traits) -> None:
        """Raise ValueError if the mechanism does not fit the form of a task's data."""

    @property
    def position_heads(self) -> int:
        """Return the number of heads that a relative position serves."""
        return 1

    def position_width(self, width: int) -> int:
        """Return the width of the queries and keys of one head."""
        return width // self.position_heads

    def position_queries(self, length: int, role: Role) -> int:
        """Return the number of queries that a relative position is applied to, counting repetitions."""
        return length

    def rotation_flops(self, length: int, width: int, role: Role) -> int:
        """Return the FLOPs that a scheme with rotations adds, beyond the rotations themselves."""
        return 0

    def build_position(self, position: PositionConfig, width: int, role: Role) -> ScorePosition | None:
        """Return the part of a position scheme that acts inside this mixer's score."""
        return position.build_score(self.position_heads, self.position_width(width), causal=role == "causal")

    def require(self, role: Role, position: ScorePosition | None) -> None:
        """Raise ConfigError for a role or a relative position that this mechanism does not have."""
        if role not in self.roles:
            raise ConfigError(f"mixer {self.type!r} cannot be {role}; it can be {', '.join(sorted(self.roles))}")
        if position is not None and not self.takes_positions:
            raise ConfigError(
                f"mixer {self.type!r} has no score that relative positions could act in; "
                "use positions none, sinusoidal or learned"
            )


class Mixer(nn.Module, ABC):
    """The base class of all mechanisms. Each mechanism is a final subclass."""

    @abstractmethod
    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: State | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, State]:
        """Return mixed vectors for the new positions, and the state that the next positions need."""

    __call__: Callable[..., tuple[Tensor, State]]

    def advance(
        self, x_BD: Tensor, *, state: State | None = None, memory: Memory | None = None
    ) -> tuple[Tensor, State]:
        """Run `forward` for one new position of each row, as decoding does.

        A mechanism may override it with fewer operations: on a CPU, half of a step is overhead between them.
        """
        y_BTD, state = self(x_BD.unsqueeze(1), state=state, memory=memory)
        return y_BTD.squeeze(1), state

    def after_step(self, step: int) -> None:
        """Update what changes with the training step but is not trained. Called after every step.

        It is kept in persistent buffers, which checkpoints save.
        """


MapSink = Callable[[nn.Module, Tensor], None]
_sink: ContextVar[MapSink | None] = ContextVar("attention map sink", default=None)


@contextmanager
def send_maps_to(sink: MapSink) -> Iterator[None]:
    """While open, each mixer that has attention weights calls `sink(mixer, weights_BHTS)`.

    Linear attention has no such weights, and slots of a compressed memory are not positions. A mixer that reads
    padded rows one by one calls it once per row.
    """
    token = _sink.set(sink)
    try:
        yield
    finally:
        _sink.reset(token)


LossSink = Callable[[Tensor], None]
_loss_sink: ContextVar[LossSink | None] = ContextVar("loss sink", default=None)


@contextmanager
def send_losses_to(sink: LossSink) -> Iterator[None]:
    """While open, each mixer with an auxiliary loss passes it to `sink`, summed over rows and positions."""
    token = _loss_sink.set(sink)
    try:
        yield
    finally:
        _loss_sink.reset(token)


def loss_sink() -> LossSink | None:
    """Return where a mixer sends its auxiliary loss; None outside training."""
    return _loss_sink.get()


def map_sink() -> MapSink | None:
    """Return where a mixer sends its attention weights; usually None."""
    return _sink.get()
