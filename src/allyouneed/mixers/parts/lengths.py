"""Read padded rows of equal real length together, without their padding."""

from collections.abc import Callable

import torch
from torch import Tensor

from allyouneed.mixers.parts.kv_cache import real_first


def read_by_length(x_BTD: Tensor, mask_BT: Tensor | None, read: Callable[[Tensor], Tensor]) -> Tensor:
    """Return `read` of the real positions of each row, in their order; zeros at padding.

    `read` maps (N, S, D) to (N, S, D) and is called once for each number of real positions.
    """
    if mask_BT is None:
        return read(x_BTD)
    order_BT, count_B = real_first(mask_BT), mask_BT.sum(dim=1)
    y_BTD = torch.zeros_like(x_BTD)
    for length in count_B.unique().tolist():
        if length:
            rows_N = (count_B == length).nonzero()[:, 0]
            place = rows_N[:, None], order_BT[rows_N, :length]
            y_BTD = y_BTD.index_put(place, read(x_BTD[place]).to(y_BTD.dtype))
    return y_BTD
