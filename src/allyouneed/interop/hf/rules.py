"""Rules that map names and shapes of weights between Hugging Face ("theirs") and this package ("ours").

    Rule("encoder.blocks.0.mixer.query_key_value.weight", ("q.weight", "k.weight", "v.weight"), Stacked())

`join` builds our tensor from theirs, `split` builds theirs from ours. An architecture is a list of such rules. A tensor
without a rule is refused in both directions.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from allyouneed.errors import FolderError
from allyouneed.weights import HALVES

ZERO_PROBABILITY_LOGIT = -1e4  # exp(-1e4) is 0 in float32 and float64


def _is_exact(scale: float, half: torch.dtype) -> bool:
    """Return whether numbers in half precision times this scale are exact; small ones of float16 are not."""
    return scale == 1 or (half is torch.bfloat16 and math.frexp(scale)[0] == 0.5)


class TensorMap(ABC):
    """A map between several tensors of theirs and one of ours."""

    @abstractmethod
    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        """Return our tensor."""

    @abstractmethod
    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        """Return their tensors."""

    def outline(self, theirs: Sequence[Tensor]) -> Tensor:
        """Return our tensor without its numbers, as theirs are without: on the device "meta"."""
        return self.join(theirs)

    def keeps(self, half: torch.dtype) -> bool:
        """Return whether `join` of tensors in half precision is exact in that type; otherwise ours is float32."""
        return False


class Same(TensorMap):
    """The identity."""

    def keeps(self, half: torch.dtype) -> bool:
        return True

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0]

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return [ours]


class Transposed(TensorMap):
    """A transposition: their layers multiply from the other side."""

    def keeps(self, half: torch.dtype) -> bool:
        return True

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0].T

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return [ours.T]


@dataclass(frozen=True)
class Stacked(TensorMap):
    """Their tensors concatenated along the rows, each scaled optionally."""

    rows: Sequence[int]  # number of rows of each of theirs
    scales: Sequence[float] = ()

    def keeps(self, half: torch.dtype) -> bool:
        return all(_is_exact(scale, half) for scale in self.scales)

    def outline(self, theirs: Sequence[Tensor]) -> Tensor:
        if len({one.shape[1:] for one in theirs}) > 1:
            raise ValueError("tensors of different widths")
        return theirs[0].new_empty(sum(len(one) for one in theirs), *theirs[0].shape[1:])

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        scales = self.scales or [1.0] * len(theirs)
        return torch.cat([one if scale == 1 else one * scale for one, scale in zip(theirs, scales, strict=True)])

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        scales = self.scales or [1.0] * count
        return [part / scale for part, scale in zip(ours.split(list(self.rows)), scales, strict=True)]


@dataclass(frozen=True)
class Interleaved(TensorMap):
    """Theirs is grouped by head (query, key, value each); ours has all queries, then all keys, then all values."""

    heads: int

    def keeps(self, half: torch.dtype) -> bool:
        return True

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0].unflatten(0, (self.heads, 3, -1)).transpose(0, 1).flatten(0, 2)

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return [ours.unflatten(0, (3, self.heads, -1)).transpose(0, 1).flatten(0, 2)]


@dataclass(frozen=True)
class Shaped(TensorMap):
    """The same numbers in other shapes."""

    ours: tuple[int, ...]
    theirs: tuple[int, ...]

    def keeps(self, half: torch.dtype) -> bool:
        return True

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0].reshape(self.ours)

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return [ours.reshape(self.theirs)]


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

    def keeps(self, half: torch.dtype) -> bool:
        return self.inner.keeps(half)

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return self.inner.join(theirs)[list(self.order)]

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return self.inner.split(ours[torch.tensor(self.order).argsort()], count)


@dataclass(frozen=True)
class After(TensorMap):
    """Their table starts with unused rows."""

    skipped: int

    def keeps(self, half: torch.dtype) -> bool:
        return True

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
        token_V = torch.tensor([0 if token is None else token for token in self.theirs], device=tensor.device)
        rows = tensor.index_select(0, token_V)
        rows[[ours for ours, token in enumerate(self.theirs) if token is None]] = 0
        return rows

    def _theirs(self, tensor: Tensor) -> Tensor:
        """Return the rows by their tokens, taken from the ids that may be generated."""
        place = {token: ours for ours, token in enumerate(self.theirs) if token is not None and ours not in self.hidden}
        return tensor[[place[token] for token in range(self.size)]]


@dataclass(frozen=True)
class _Table(TensorMap):
    rows: Rows
    scale: float

    def keeps(self, half: torch.dtype) -> bool:
        return _is_exact(self.scale, half)

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        rows = self.rows._ours(theirs[0])
        return rows if self.scale == 1 else rows * self.scale

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        return [self.rows._theirs(ours) / self.scale]


@dataclass(frozen=True)
class _Bias(TensorMap):
    rows: Rows
    as_row: bool

    def keeps(self, half: torch.dtype) -> bool:
        return not self.rows.hidden

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


class JoinedTensors:
    """Our tensors, each joined when it is computed; theirs are freed after that. Half precision stays if it is exact.

    Raise FolderError with the name of a missing or unexpected tensor, or for shapes that do not fit.
    """

    def __init__(self, rules: Iterable[Rule], theirs: Mapping[str, Tensor], where: object) -> None:
        self._rules, self._theirs, self._where = {rule.ours: rule for rule in rules}, dict(theirs), where
        left = set(theirs)
        for rule in self._rules.values():
            for name in rule.theirs:
                if name not in left:
                    raise FolderError(f"{where}: tensor {name} is missing")
                left.remove(name)
        for name in sorted(left):
            raise FolderError(f"{where}: tensor {name} is not part of this architecture")
        self._specs = {name: self._spec(rule) for name, rule in self._rules.items()}

    def specs(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Return the types and shapes of our tensors."""
        return self._specs

    def outlines(self) -> dict[str, Tensor]:
        """Return tensors of these types and shapes, without numbers."""
        return {name: torch.empty(shape, dtype=dtype, device="meta") for name, (dtype, shape) in self._specs.items()}

    def compute(self, name: str) -> Tensor:
        """Return one of our tensors. Each can be computed once."""
        rule = self._rules[name]
        found = [self._theirs.pop(one) for one in rule.theirs]
        return self._join(rule, found, self._specs[name][0], rule.mapping.join)

    def _spec(self, rule: Rule) -> tuple[torch.dtype, tuple[int, ...]]:
        found = [self._theirs[name] for name in rule.theirs]
        kinds = {one.dtype for one in found if one.is_floating_point()}
        half = next(iter(kinds)) if len(kinds) == 1 else torch.float32
        dtype = half if half in HALVES and rule.mapping.keeps(half) else torch.float32
        outline = self._join(rule, [one.to("meta") for one in found], dtype, rule.mapping.outline)
        return outline.dtype, tuple(outline.shape)

    def _join(
        self, rule: Rule, found: list[Tensor], dtype: torch.dtype, join: Callable[[Sequence[Tensor]], Tensor]
    ) -> Tensor:
        try:
            with torch.device(found[0].device if found else "cpu"):
                typed = [one.to(dtype) if one.is_floating_point() else one for one in found]
                return join(typed).contiguous()
        except (RuntimeError, IndexError, ValueError, FolderError) as error:
            shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in zip(rule.theirs, found, strict=True))
            raise FolderError(f"{self._where}: shapes do not match the config: {shapes} ({error})") from None


def split_all(rules: Iterable[Rule], ours: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and values of their tensors."""
    for rule in rules:
        if rule.theirs:
            yield from zip(rule.theirs, rule.mapping.split(ours[rule.ours], len(rule.theirs)), strict=True)
