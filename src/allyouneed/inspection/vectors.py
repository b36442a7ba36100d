"""The embeddings of a forward pass, as leaves of the autograd graph."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class Vectors(TorchFunctionMode):
    """Records the result of every embedding lookup as a leaf of the autograd graph, in any model."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.embedding or func is torch.embedding:
            result = result.detach().requires_grad_()
            self.found.append(result)
        return result
