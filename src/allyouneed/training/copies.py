"""Ids of an imported model that are no tokens of their own: training must not change what they stand for.

BART starts a target with its end token, GPT-2 starts and ends a text with one. Here these are two ids with equal rows,
one of which is never generated. The sum of their gradients is the gradient of the token, and both rows get it: they
stay equal, and an export has the row that was trained. Ids that stand for no token, and the output bias that keeps ids
from being generated, stay as they are. Optimizers of these weights work row by row.
"""

from typing import Any

from torch import nn

from allyouneed.text.codec import Codec
from allyouneed.text.origin import Origin

TABLES, BIAS = ("source.weight_VD", "target.weight_VD", "head.weight_VD"), "head.bias_V"


def join_gradients(model: nn.Module, codec: Codec) -> None:
    """Give the rows of one token the sum of their gradients, and ids without a token no gradient."""
    if (origin := codec.origin) is None or not origin.hidden:
        return
    for name, weight in model.named_parameters():
        of_tokens = name in (*TABLES, BIAS) and len(weight) == len(origin.theirs)  # not of classes
        rows = _first_rows(weight.grad) if of_tokens else None
        if rows is not None and name == BIAS:
            rows[sorted(origin.hidden)] = 0
        elif rows is not None:
            _join(rows, origin)


def _join(rows: Any, origin: Origin) -> None:
    for group in origin.copies():
        rows[group] = rows[group].sum(0, keepdim=True)
    rows[[ours for ours in sorted(origin.hidden) if origin.theirs[ours] is None]] = 0


def _first_rows(grad: Any) -> Any:
    """Return a gradient, or its first rows: of a sharded table, those with special ids are in the first process."""
    if grad is None or not hasattr(grad, "to_local"):
        return grad
    return grad.to_local() if grad.device_mesh.get_local_rank() == 0 else None
