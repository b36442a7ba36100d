"""Helpers for states of any shape.

A state is a dataclass whose leaves are tensors with the batch first (or objects with a `select` of their own), nested
in dataclasses, lists and tuples. So beam search can pick rows of any state without knowing the model, and a server can
let rows that began at different times go on together: a state whose rows may differ in length has a `join` of its own,
which determines where padding is.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Tree = TypeVar("Tree")

SLACK = 16  # positions a growing buffer has to spare, at least


def select_rows(state: Tree, rows_B: Tensor) -> Tree:
    """The same state for some rows of the batch, in the given order; rows may repeat."""
    return _select(state, rows_B)


def _select(node: Any, rows_B: Tensor) -> Any:
    if isinstance(node, Tensor):
        return node.index_select(0, rows_B)
    if hasattr(node, "select"):
        return node.select(rows_B)
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        fields = {f.name: _select(getattr(node, f.name), rows_B) for f in dataclasses.fields(node)}
        return dataclasses.replace(node, **fields)
    if isinstance(node, list | tuple):
        return type(node)(_select(item, rows_B) for item in node)
    return node  # None and plain numbers are the same for every row


def join_rows(states: Sequence[Tree], count_P: Tensor | None = None) -> Tree:
    """The rows of several states of one kind as one batch.

    `count_P`: how many rows each state has. A number that states differ in becomes one for each row (B) by it.
    What only rows that have left could see is dropped, so a batch that rows join and leave does not grow for ever.
    """
    return _join(states, count_P)


def _join(nodes: Sequence[Any], count_P: Tensor | None) -> Any:
    first = nodes[0]
    if (joiner := next((node for node in nodes if hasattr(node, "join")), None)) is not None:
        return joiner.join(nodes, count_P)
    if isinstance(first, Tensor | int | float) and not isinstance(first, bool):
        return join_numbers(nodes, count_P)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        return join_fields(nodes, count_P)
    if isinstance(first, list | tuple):
        return type(first)(_join(items, count_P) for items in zip(*nodes, strict=True))
    if (first is None or isinstance(first, bool)) and all(node is first for node in nodes):
        return first  # the same for every row
    raise TypeError(f"the rows of a {type(first).__name__} cannot be joined")


def join_fields(nodes: Sequence[Tree], count_P: Tensor | None, **made: Any) -> Tree:
    """Dataclasses, joined field by field; but for those that are made already."""
    first: Any = nodes[0]
    for field in dataclasses.fields(first):
        if field.name not in made:
            made[field.name] = _join([getattr(node, field.name) for node in nodes], count_P)
    return dataclasses.replace(first, **made)


def join_numbers(nodes: Sequence[Any], count_P: Tensor | None) -> Any:
    """Tensors as one; numbers that all states agree in stay one, others become one for each row (B)."""
    if all(isinstance(node, Tensor) for node in nodes):
        return torch.cat(list(nodes)) if len(nodes) > 1 else nodes[0]
    if all(isinstance(node, int | float) and node == nodes[0] for node in nodes):
        return nodes[0]
    if count_P is None or any(node is None for node in nodes):
        raise TypeError("rows of states that differ in a number are joined by how many rows each state has")
    counts = count_P.tolist()
    return torch.cat(
        [
            node if isinstance(node, Tensor) else torch.full((count,), node, device=count_P.device)
            for node, count in zip(nodes, counts, strict=True)
        ]
    )


def join_padded(tensors: Sequence[Tensor], dim: int, left: bool = False) -> Tensor:
    """Tensors as one along the batch, all padded with zeros to the longest along another dimension."""
    longest = max(tensor.shape[dim] for tensor in tensors)
    padded = []
    for tensor in tensors:
        missing = longest - tensor.shape[dim]
        sides = [0, 0] * (tensor.ndim - 1 - dim) + ([missing, 0] if left else [0, missing])
        padded.append(torch.nn.functional.pad(tensor, sides) if missing else tensor)
    return torch.cat(padded) if len(padded) > 1 else padded[0]


def run_by_length(length_B: Tensor, state: Tree, run: Callable[[Tree, Tensor, slice], Tree]) -> Tree:
    """The state after every row has run its own number of steps: `run(state, rows, steps)` takes some rows through some
    steps, and the numbers of the rows come with their states.

    The longest rows come first: those that have run all their steps leave at the end, and cost no more.
    """
    row_B = length_B.argsort(descending=True)
    lengths, all_B = length_B[row_B].tolist(), torch.arange(len(row_B), device=row_B.device)
    state, ended, begin, before = select_rows(state, row_B), [], 0, len(lengths)
    for end in sorted(set(lengths) - {0}):
        active = sum(length >= end for length in lengths)
        if active < before:
            ended.append(select_rows(state, all_B[active:before]))
            state = select_rows(state, all_B[:active])
        state, begin, before = run(state, row_B[:active], slice(begin, end)), end, active
    return select_rows(join_rows([state, *reversed(ended)]), row_B.argsort())


def detach(state: Tree) -> Tree:
    """The same state, through which no gradient flows back."""
    return _detach(state)


def _detach(node: Any) -> Any:
    if isinstance(node, Tensor | Growable):
        return node.detach()
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return dataclasses.replace(node, **{f.name: _detach(getattr(node, f.name)) for f in dataclasses.fields(node)})
    if isinstance(node, list | tuple):
        return type(node)(_detach(item) for item in node)
    return node


class Growable:
    """A tensor (B, S, N) that grows along S at amortised constant cost, may forget its beginning, and behaves like a
    value.

    Several states may share one buffer: the newest writes behind its end in place; an older one that is continued a
    second time finds the place taken and copies. Under autograd nothing is written in place.
    """

    __slots__ = ("_begin", "_buffer", "_end", "length")

    def __init__(self, tensor_BSN: Tensor) -> None:
        self._buffer = tensor_BSN
        self._begin, self.length = 0, tensor_BSN.shape[1]
        self._end = [self.length]  # how far the buffer is written; shared by all that share the buffer

    @property
    def tensor(self) -> Tensor:
        """What has been appended so far and is not dropped."""
        return self._buffer.narrow(1, self._begin, self.length)

    def append(self, new_BTN: Tensor) -> "Growable":
        """This tensor with new positions at its end."""
        if torch.is_grad_enabled() and (new_BTN.requires_grad or self._buffer.requires_grad):
            return Growable(torch.cat([self.tensor, new_BTN], dim=1))
        T = new_BTN.shape[1]
        grown = self.reserve(T)
        grown._buffer.narrow(1, grown._begin + self.length, T).copy_(new_BTN)
        return grown

    def reserve(self, count: int) -> "Growable":
        """This tensor with new positions at its end that are still to be written. No gradients."""
        base, grown, end = self, self.length + count, self._begin + self.length
        if self._end[0] != end or end + count > self._buffer.shape[1]:
            base = self._copy(grown + max(SLACK, grown // 2))
            end = self.length
        base._end[0] = end + count
        return base._view(base._begin, grown)

    def keep_last(self, count: int) -> "Growable":
        """Return the newest `count` positions. The next growth copies them and frees the memory of the others."""
        dropped = max(0, self.length - count)
        return self._view(self._begin + dropped, self.length - dropped) if dropped else self

    def select(self, rows_B: Tensor) -> "Growable":
        """The rows of a batch; the buffer keeps its slack, so that the next append need not copy again."""
        if torch.is_grad_enabled() and self._buffer.requires_grad:
            return Growable(self.tensor.index_select(0, rows_B))
        chosen = self._empty(len(rows_B), self._buffer.shape[1] - self._begin)
        torch.index_select(self.tensor, 0, rows_B, out=chosen.tensor)
        return chosen

    @staticmethod
    def join(nodes: "Sequence[Growable]", count_P: Tensor | None = None, value: float = 0) -> "Growable":
        """Return the rows of several; the newest positions are last, padding is first."""
        longest = max(node.length for node in nodes)
        rows = [node._buffer.shape[0] for node in nodes]
        shape = sum(rows), longest + max(SLACK, longest // 2), nodes[0]._buffer.shape[2]
        joined = Growable(nodes[0]._buffer.new_full(shape, value))
        joined.length, joined._end = longest, [longest]
        for part, node in zip(joined.tensor.split(rows), nodes, strict=True):
            part[:, longest - node.length :] = node.tensor
        return joined

    def detach(self) -> "Growable":
        """The same without its gradient."""
        return Growable(self.tensor.detach())

    def _copy(self, capacity: int) -> "Growable":
        copy = self._empty(self._buffer.shape[0], capacity)
        copy.tensor.copy_(self.tensor)
        return copy

    def _empty(self, rows: int, capacity: int) -> "Growable":
        empty = Growable(self._buffer.new_empty(rows, capacity, self._buffer.shape[2]))
        empty.length, empty._end = self.length, [self.length]
        return empty

    def _view(self, begin: int, length: int) -> "Growable":
        view = Growable.__new__(Growable)
        view._buffer, view._end, view._begin, view.length = self._buffer, self._end, begin, length
        return view
