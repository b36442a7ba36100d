"""Names and shapes of weights, theirs and ours, as rules that are read in both directions.

    Rule("encoder.blocks.0.mixer.query_key_value.weight", ("q.weight", "k.weight", "v.weight"), Stacked())

`join` makes our tensor of theirs, `split` theirs of ours. An architecture is a list of such rules: what is in no rule
is refused, whichever way it goes.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from allyouneed.errors import FolderError

ZERO_PROBABILITY_LOGIT = -1e4  # a logit that has no probability: exp(-1e4) is 0 in float32 and float64


class TensorMap(ABC):
    """How some tensors of theirs are one of ours."""

    @abstractmethod
    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        """Ours."""

    @abstractmethod
    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        """Theirs."""


class Same(TensorMap):
    """The same numbers in the same order."""

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0]

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return [ours]


class Transposed(TensorMap):
    """Their layers multiply from the other side."""

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0].T

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return [ours.T]


@dataclass(frozen=True)
class Stacked(TensorMap):
    """Rows of several of theirs below each other; each may be scaled on its way in."""

    rows: Sequence[int]  # of each of theirs
    scales: Sequence[float] = ()

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        scales = self.scales or [1.0] * len(theirs)
        return torch.cat([tensor * scale for tensor, scale in zip(theirs, scales, strict=True)])

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        scales = self.scales or [1.0] * count
        return [part / scale for part, scale in zip(ours.split(list(self.rows)), scales, strict=True)]


@dataclass(frozen=True)
class Interleaved(TensorMap):
    """Theirs stands head by head, each with query, key and value; ours has all queries, all keys, all values."""

    heads: int

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0].unflatten(0, (self.heads, 3, -1)).transpose(0, 1).flatten(0, 2)

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return [ours.unflatten(0, (3, self.heads, -1)).transpose(0, 1).flatten(0, 2)]


@dataclass(frozen=True)
class After(TensorMap):
    """Their table has rows in front that nobody reads."""

    skipped: int

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0][self.skipped :]

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return [torch.cat([ours.new_zeros(self.skipped, *ours.shape[1:]), ours])]


@dataclass(frozen=True)
class Nothing(TensorMap):
    """Zeros that theirs does not have."""

    shape: tuple[int, ...]

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return torch.zeros(self.shape)

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return []


@dataclass(frozen=True)
class Rows:
    """Which of their tokens each of our ids is (None: none of them), and which ids of ours must never be said.

    An id of ours that has no token of its own in theirs (two of our special ids may be one of theirs) has a logit
    without probability, so that all others keep theirs.
    """

    theirs: Sequence[int | None]
    hidden: frozenset[int] = frozenset()
    size: int = 0  # how many tokens theirs has
    classes: int = 0  # how many answers there are that are no tokens

    def table(self, scale: float = 1.0) -> "TensorMap":
        """For embeddings: one row a token."""
        return _Table(self, scale)

    def bias(self, as_row: bool = False) -> "TensorMap":
        """For a number a token (`as_row`: theirs is a matrix of one row); ours has one if some id is hidden."""
        return _Bias(self, as_row)

    def _ours(self, tensor: Tensor) -> Tensor:
        if tensor.shape[0] != self.size:
            raise FolderError(f"{tensor.shape[0]:,} rows for {self.size:,} tokens")
        padded = torch.cat([tensor, tensor.new_zeros(1, *tensor.shape[1:])])
        return padded[[-1 if token is None else token for token in self.theirs]]

    def _theirs(self, tensor: Tensor) -> Tensor:
        """A token of theirs has the row of the id that may be said."""
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
    """One tensor of ours."""

    ours: str
    theirs: tuple[str, ...]
    mapping: TensorMap = field(default_factory=Same)


def layer(ours: str, theirs: str, *, bias: bool = True, mapping: TensorMap | None = None) -> list[Rule]:
    """Weight and bias of a layer or a norm with the same numbers."""
    names = ("weight", "bias") if bias else ("weight",)
    return [Rule(f"{ours}.{name}", (f"{theirs}.{name}",), mapping or Same()) for name in names]


def stacked(
    ours: str, theirs: Sequence[str], rows: Sequence[int], *, bias: bool = True, scales: Sequence[float] = ()
) -> list[Rule]:
    """A layer that is several of theirs."""
    names = ("weight", "bias") if bias else ("weight",)
    mapping = Stacked(tuple(rows), tuple(scales))
    return [Rule(f"{ours}.{name}", tuple(f"{one}.{name}" for one in theirs), mapping) for name in names]


def join_all(rules: Iterable[Rule], theirs: Mapping[str, Tensor], where: object) -> dict[str, Tensor]:
    """Our tensors; a weight that is missing or left over is refused by its name."""
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
            raise FolderError(f"{where}: the shapes do not fit the config: {shapes} ({error})") from None
    for name in sorted(left):
        raise FolderError(f"{where}: tensor {name} is no part of this architecture")
    return ours


def split_all(rules: Iterable[Rule], ours: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Their tensors."""
    for rule in rules:
        if rule.theirs:
            yield from zip(rule.theirs, rule.mapping.split(ours[rule.ours], len(rule.theirs)), strict=True)
