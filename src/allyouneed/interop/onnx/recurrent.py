"""Mixers with a state of constant size as ONNX operations: recurrences and linear attention.

    rnn, lstm, gru   ONNX has them (RNN, LSTM, and GRU with linear_before_reset); its gates have another order
    linear           y = ((phi(q) phi(k)^T, lower triangle) v + phi(q) S) / the same of ones;   S + phi(k)^T v

As in mixers/linear.py, values have a 1 at their end, so numerator and denominator are one product.
"""

from collections.abc import Sequence

import torch

from allyouneed.interop.onnx.graph import FLOAT, INT32, Graph
from allyouneed.mixers.recurrent import Cell, CellKind

# The order of ONNX's gates among ours. LSTM: i, o, f, c of i, f, g, o; GRU: z, r, h of r, z, n.
GATES: dict[CellKind, tuple[int, ...]] = {"rnn": (0,), "lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}


def lengths_of(g: Graph, valid: str) -> str:
    """Return the number of real tokens of each row, (B, S) -> (B), as recurrences expect it."""
    return g("ReduceSum", g("Cast", valid, to=INT32), g.constant([1]), keepdims=0)


def recur(
    g: Graph, cells: Sequence[Cell], x: str, lengths: str | None = None, before: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """Return (B, T, cells K), and the final states of a single cell, (B, K) each; the second of two runs backwards."""
    kind, width = cells[0].kind, cells[0].width
    order = torch.cat([torch.arange(width) + gate * width for gate in GATES[kind]])
    weights = [torch.stack([cell.input.weight[order] for cell in cells])]
    weights += [torch.stack([cell.past.weight[order] for cell in cells])]
    weights += [torch.stack([torch.cat([cell.input.bias[order], _past_bias(cell)[order]]) for cell in cells])]
    given = [g("Transpose", x, perm=[1, 0, 2]), *(g.weight(weight) for weight in weights), lengths or ""]
    given += [g.unsqueeze(state, 0) for state in before]
    attributes = {"hidden_size": width, "direction": "forward" if len(cells) == 1 else "bidirectional"}
    attributes |= {"linear_before_reset": 1} if kind == "gru" else {}
    while not given[-1]:  # drop omitted trailing inputs
        given.pop()
    y, *after = g.several(kind.upper(), *given, count=3 if kind == "lstm" else 2, **attributes)
    merged = g.reshape(g("Transpose", y, perm=[2, 0, 1, 3]), 0, 0, -1)
    return merged, [g("Squeeze", one, g.constant([0])) for one in after] if len(cells) == 1 else []


def _past_bias(cell: Cell) -> torch.Tensor:
    return cell.past.bias if cell.past.bias is not None else torch.zeros_like(cell.input.bias)


def feature(g: Graph, x: str) -> str:
    """Return phi(x) = elu(x) + 1."""
    return g("Add", g("Elu", x), g.constant(1.0))


def with_ones(g: Graph, value: str) -> str:
    """Append a 1 to the values."""
    return g("Pad", value, g.constant([0, 1]), g.constant(1.0), g.constant([-1]))


def total(g: Graph, key: str, value: str, valid: str) -> str:
    """Return S over whole sequences (B, H, S, K), with the mask of real positions (B, S)."""
    real = g("Cast", g.unsqueeze(valid, 1, 3), to=FLOAT)
    return _sum(g, g("Mul", feature(g, key), real), with_ones(g, value))


def read(g: Graph, query: str, total: str) -> str:
    """Return phi(q)^T S / phi(q)^T z."""
    return _divide(g, g("MatMul", feature(g, query), total))


def read_causally(g: Graph, query: str, key: str, value: str, before: str) -> tuple[str, str]:
    """Return the causal outputs of each position, and S after the last."""
    query, key, value = feature(g, query), feature(g, key), with_ones(g, value)
    score = g("Trilu", g("MatMul", query, g("Transpose", key, perm=[0, 1, 3, 2])), upper=0)
    y = g("Add", g("MatMul", score, value), g("MatMul", query, before))
    return _divide(g, y), g("Add", before, _sum(g, key, value))


def _sum(g: Graph, key: str, value: str) -> str:
    return g("MatMul", g("Transpose", key, perm=[0, 1, 3, 2]), value)


def _divide(g: Graph, y: str) -> str:
    above = g("Slice", y, g.constant([0]), g.constant([-1]), g.constant([-1]))
    below = g("Slice", y, g.constant([-1]), g.constant([2**31]), g.constant([-1]))
    nothing = g("Equal", below, g.constant(0.0))  # fully masked rows return zeros
    return g("Div", above, g("Where", nothing, g.constant(1.0), below))
