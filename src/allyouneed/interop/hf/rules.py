"""Rules that map names and shapes of weights between Hugging Face ("theirs") and this package ("ours").

    Rule("encoder.blocks.0.mixer.query_key_value.weight", ("q.weight", "k.weight", "v.weight"), Stacked())

`join` builds our tensor from theirs, `split` builds theirs from ours. An architecture is a list of such rules. A tensor
without a rule is refused in both directions.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from allyouneed.errors import FolderError

ZERO_PROBABILITY_LOGIT = -1e4  # exp(-1e4) is 0 in float32 and float64


class TensorMap(ABC):
    """A map between several tensors of theirs and one of ours."""

    @abstractmethod
    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        """Return our tensor."""

    @abstractmethod
    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        """Return their tensors."""


class Same(TensorMap):
    """The identity."""

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0]

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return [ours]


class Transposed(TensorMap):
    """A transposition: their layers multiply from the other side."""

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0].T

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return [ours.T]


@dataclass(frozen=True)
class Stacked(TensorMap):
    """Their tensors concatenated along the rows, each scaled optionally."""

    rows: Sequence[int]  # number of rows of each of theirs
    scales: Sequence[float] = ()

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        scales = self.scales or [1.0] * len(theirs)
        return torch.cat([tensor * scale for tensor, scale in zip(theirs, scales, strict=True)])

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        scales = self.scales or [1.0] * count
        return [part / scale for part, scale in zip(ours.split(list(self.rows)), scales, strict=True)]


@dataclass(frozen=True)
class Interleaved(TensorMap):
    """Theirs is grouped by head (query, key, value each); ours has all queries, then all keys, then all values."""

    heads: int

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0].unflatten(0, (self.heads, 3, -1)).transpose(0, 1).flatten(0, 2)

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return [ours.unflatten(0, (3, self.heads, -1)).transpose(0, 1).flatten(0, 2)]


@dataclass(frozen=True)
class Plus(TensorMap):
    """Theirs is smaller by a constant: their norms multiply by 1 + w."""

    constant: float

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0] + self.constant

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return [ours - self.constant]


@dataclass(frozen=True)
class Reordered(TensorMap):
    """The rows of another map of theirs in our order: row i of ours is row `order[i]` of theirs."""

    inner: TensorMap
    order: Sequence[int]

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return self.inner.join(theirs)[list(self.order)]

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return self.inner.split(ours[torch.tensor(self.order).argsort()], count)


@dataclass(frozen=True)
class After(TensorMap):
    """Their table starts with unused rows."""

    skipped: int

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0][self.skipped :]

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return [torch.cat([ours.new_zeros(self.skipped, *ours.shape[1:]), ours])]


@dataclass(frozen=True)
class Nothing(TensorMap):
    """Zeros, without a tensor of theirs."""

    shape: tuple[int, ...]

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return torch.zeros(self.shape)

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return []


@dataclass(frozen=True)
class Rows:
    """Their token for each of our ids (None if there is none), and our ids that must never be generated.

    Two of our special ids may be one token of theirs. The second one gets a logit with zero probability, so that all
    other probabilities stay the same.
    """

    theirs: Sequence[int | None]
    hidden: frozenset[int] = frozenset()
    size: int = 0  # number of their tokens
    classes: int = 0  # number of output classes, if the outputs are not tokens

    def table(self, scale: float = 1.0) -> "TensorMap":
        """Return the map of an embedding: one row per token."""
        return _Table(self, scale)

    def bias(self, as_row: bool = False) -> "TensorMap":
        """Return the map of an output bias (`as_row`: theirs has shape (1, V)); ours has one if an id is hidden."""
        return _Bias(self, as_row)

    def _ours(self, tensor: Tensor) -> Tensor:
        if tensor.shape[0] != self.size:
            raise FolderError(f"{tensor.shape[0]:,} rows for {self.size:,} tokens")
        padded = torch.cat([tensor, tensor.new_zeros(1, *tensor.shape[1:])])
        return padded[[-1 if token is None else token for token in self.theirs]]

    def _theirs(self, tensor: Tensor) -> Tensor:
        """Return the rows by their tokens, taken from the ids that may be generated."""
        place = {token: ours for ours, token in enumerate(self.theirs) if token is not None and ours not in self.hidden}
        return tensor[[place[token] for token in range(self.size)]]


@dataclass(frozen=True)
class _Table(TensorMap):
    rows: Rows
    scale: float

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return self.rows._ours(theirs[0]) * self.scale

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return [self.rows._theirs(ours) / self.scale]


@dataclass(frozen=True)
class _Bias(TensorMap):
    rows: Rows
    as_row: bool

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        given = theirs[0].flatten() if theirs else torch.zeros(self.rows.size)
        bias_V = self.rows._ours(given)
        bias_V[list(self.rows.hidden)] = ZERO_PROBABILITY_LOGIT
        return bias_V

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        bias_V = self.rows._theirs(ours)
        return [bias_V[None] if self.as_row else bias_V][:count]


@dataclass(frozen=True)
class Rule:
    """The rule for one tensor of ours."""

    ours: str
    theirs: tuple[str, ...]
    mapping: TensorMap = field(default_factory=Same)


def layer(ours: str, theirs: str, *, bias: bool = True, mapping: TensorMap | None = None) -> list[Rule]:
    """Return the rules for the weight and bias of a layer or norm."""
    names = ("weight", "bias") if bias else ("weight",)
    return [Rule(f"{ours}.{name}", (f"{theirs}.{name}",), mapping or Same()) for name in names]


def stacked(
    ours: str, theirs: Sequence[str], rows: Sequence[int], *, bias: bool = True, scales: Sequence[float] = ()
) -> list[Rule]:
    """Return the rules for a layer that is several layers of theirs."""
    names = ("weight", "bias") if bias else ("weight",)
    mapping = Stacked(tuple(rows), tuple(scales))
    return [Rule(f"{ours}.{name}", tuple(f"{one}.{name}" for one in theirs), mapping) for name in names]


def join_all(rules: Iterable[Rule], theirs: Mapping[str, Tensor], where: object) -> dict[str, Tensor]:
    """Return our tensors. Raise FolderError with the name of a missing or unexpected tensor."""
    left, ours = dict(theirs), {}
    for rule in rules:
        found = []
        for name in rule.theirs:
            if name not in left:
                raise FolderError(f"{where}: tensor {name} is missing")
            found.append(left.pop(name))
        try:
            ours[rule.ours] = rule.mapping.join(found).contiguous()
        except (RuntimeError, IndexError, ValueError, FolderError) as error:
            shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in zip(rule.theirs, found, strict=True))
            raise FolderError(f"{where}: shapes do not match the config: {shapes} ({error})") from None
    for name in sorted(left):
        raise FolderError(f"{where}: tensor {name} is not part of this architecture")
    return ours


def split_all(rules: Iterable[Rule], ours: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and values of their tensors."""
    for rule in rules:
        if rule.theirs:
            yield from zip(rule.theirs, rule.mapping.split(ours[rule.ours], len(rule.theirs)), strict=True)
