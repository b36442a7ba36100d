"""Helpers for states of any shape.

A state is a dataclass whose leaves are tensors with the batch first (or objects with their own `select`), nested
in dataclasses, lists and tuples. So beam search can select rows of any state, whatever the model, and a server can
batch rows that started at different times. A state whose rows may differ in length has its own `join`, which places
the padding.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Tree = TypeVar("Tree")

SLACK = 16  # minimum number of spare positions in a growing buffer


def select_rows(state: Tree, rows_B: Tensor) -> Tree:
    """Return the state of some rows of the batch, in this order; rows may repeat."""
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
    """Join the rows of several states of one kind into one batch.

    `count_P`: the number of rows of each state, needed to expand a number that differs between states to one per row
    (B). Slots that only removed rows could see are dropped, so a batch that rows join and leave stays bounded.
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
        return first
    raise TypeError(f"the rows of a {type(first).__name__} cannot be joined")


def join_fields(nodes: Sequence[Tree], count_P: Tensor | None, **made: Any) -> Tree:
    """Join dataclasses field by field, except the fields in `made`, which are joined already."""
    first: Any = nodes[0]
    for field in dataclasses.fields(first):
        if field.name not in made:
            made[field.name] = _join([getattr(node, field.name) for node in nodes], count_P)
    return dataclasses.replace(first, **made)


def join_numbers(nodes: Sequence[Any], count_P: Tensor | None) -> Any:
    """Concatenate tensors. Equal numbers stay one number; different ones become a tensor with one per row (B)."""
    if all(isinstance(node, Tensor) for node in nodes):
        return torch.cat(list(nodes)) if len(nodes) > 1 else nodes[0]
    if all(isinstance(node, int | float) and node == nodes[0] for node in nodes):
        return nodes[0]
    if count_P is None or any(node is None for node in nodes):
        raise TypeError("states differ in a number: join_rows needs count_P, the number of rows of each state")
    counts = count_P.tolist()
    return torch.cat(
        [
            node if isinstance(node, Tensor) else torch.full((count,), node, device=count_P.device)
            for node, count in zip(nodes, counts, strict=True)
        ]
    )


def join_padded(tensors: Sequence[Tensor], dim: int, left: bool = False) -> Tensor:
    """Concatenate tensors along the batch, padded with zeros to the longest along `dim`."""
    longest = max(tensor.shape[dim] for tensor in tensors)
    padded = []
    for tensor in tensors:
        missing = longest - tensor.shape[dim]
        sides = [0, 0] * (tensor.ndim - 1 - dim) + ([missing, 0] if left else [0, missing])
        padded.append(torch.nn.functional.pad(tensor, sides) if missing else tensor)
    return torch.cat(padded) if len(padded) > 1 else padded[0]


def run_by_length(length_B: Tensor, state: Tree, run: Callable[[Tree, Tensor, slice], Tree]) -> Tree:
    """Return the state after every row has run its own number of steps.

    `run(state, rows, steps)` runs some rows, whose states and indices it receives, through some steps. Rows are sorted
    by length, longest first, so rows that have finished are cut off at the end and cost nothing more.
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
    """Return the state detached from the graph."""
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
    """A tensor (B, S, N) that grows along S at amortised constant cost, can drop its start, and behaves like a value.

    Several states may share one buffer. The newest one writes after its end in place. An older one that is continued a
    second time finds those slots taken and copies. Under autograd nothing is written in place.
    """

    __slots__ = ("_begin", "_buffer", "_end", "length")

    def __init__(self, tensor_BSN: Tensor) -> None:
        self._buffer = tensor_BSN
        self._begin, self.length = 0, tensor_BSN.shape[1]
        self._end = [self.length]  # end of the written part; a list, so that all views of the buffer share it

    @property
    def tensor(self) -> Tensor:
        """Return everything appended so far and not dropped."""
        return self._buffer.narrow(1, self._begin, self.length)

    def append(self, new_BTN: Tensor) -> "Growable":
        """Return this tensor with new positions at its end."""
        if torch.is_grad_enabled() and (new_BTN.requires_grad or self._buffer.requires_grad):
            return Growable(torch.cat([self.tensor, new_BTN], dim=1))
        T = new_BTN.shape[1]
        grown = self.reserve(T)
        grown._buffer.narrow(1, grown._begin + self.length, T).copy_(new_BTN)
        return grown

    def reserve(self, count: int) -> "Growable":
        """Return this tensor with `count` uninitialised positions at its end, for the caller to write. No autograd."""
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
        """Return some rows. The buffer keeps its slack, so the next append does not copy again."""
        if torch.is_grad_enabled() and self._buffer.requires_grad:
            return Growable(self.tensor.index_select(0, rows_B))
        chosen = self._empty(len(rows_B), self._buffer.shape[1] - self._begin)
        torch.index_select(self.tensor, 0, rows_B, out=chosen.tensor)
        return chosen

    @staticmethod
    def join(nodes: "Sequence[Growable]", count_P: Tensor | None = None, value: float = 0) -> "Growable":
        """Return the rows of all nodes, aligned at the newest position; padding with `value` is on the left."""
        longest = max(node.length for node in nodes)
        rows = [node._buffer.shape[0] for node in nodes]
        shape = sum(rows), longest + max(SLACK, longest // 2), nodes[0]._buffer.shape[2]
        joined = Growable(nodes[0]._buffer.new_full(shape, value))
        joined.length, joined._end = longest, [longest]
        for part, node in zip(joined.tensor.split(rows), nodes, strict=True):
            part[:, longest - node.length :] = node.tensor
        return joined

    def detach(self) -> "Growable":
        """Return the tensor detached from the graph."""
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
