"""Windows of a sequence, and the last inputs that the next window needs: the building blocks of convolutions.

    y_t = b + sum_j W_j x_(t - (k - 1 - j) d),   j = 0 .. k - 1        a masked convolution of width k, dilation d
        = b + [W_0 .. W_(k-1)] [x_(t - (k-1) d); ..; x_(t - d); x_t]   one matrix over the window of t

A convolution is a matrix product over windows, so a layer is `linear(conv_window.causal(x))`: on a CPU, at the sizes of
a laptop's model, that is about as fast as `conv1d`, and one step of decoding is the same product over one window. The
masked form keeps the last (k - 1) d inputs, which start as zeros. The centred form, for encoders, is zero-padded on
both sides.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from allyouneed.mixers.parts.state import Growable


@dataclass(frozen=True)
class ConvWindow:
    """The inputs that a convolution reads for one output: `kernel` of them, `dilation` apart."""

    kernel: int
    dilation: int = 1

    @property
    def reach(self) -> int:
        """Return how far back the masked form reads, which is also the number of inputs it keeps."""
        return (self.kernel - 1) * self.dilation

    def centred(self, x_BSD: Tensor) -> Tensor:
        """Return the windows (B, S, kernel D) around every position; an even kernel reads one more on the left."""
        right = (self.kernel - 1) // 2 * self.dilation
        return self._windows(F.pad(x_BSD, (0, 0, self.reach - right, right)), x_BSD.shape[1])

    def start(self, like_BSD: Tensor, width: int) -> Growable:
        """Return the kept inputs before the first position: zeros."""
        return Growable(like_BSD.new_zeros(like_BSD.shape[0], self.reach, width))

    def causal(self, x_BTD: Tensor, recent: Growable, real_B: Tensor | None = None) -> tuple[Tensor, Growable]:
        """Return the windows that end in every new position, and the inputs to keep.

        `real_B`: the number of real new positions of each row, which come first. Padding after them is not kept.
        """
        T = x_BTD.shape[1]
        joined = recent.append(x_BTD)
        windows_BTN = self._windows(joined.tensor, T)
        if real_B is None:
            return windows_BTN, joined.keep_last(self.reach)
        place_BR = real_B[:, None] + torch.arange(self.reach, device=real_B.device)
        kept_BRD = joined.tensor.gather(1, place_BR.unsqueeze(-1).expand(-1, -1, x_BTD.shape[2]))
        return windows_BTN, Growable(kept_BRD)

    def advance(self, x_BD: Tensor, recent: Growable) -> tuple[Tensor, Growable]:
        """Do the same as `causal` for one new position of each row: windows (B, kernel D)."""
        joined = recent.append(x_BD.unsqueeze(1))
        return joined.tensor[:, :: self.dilation].flatten(1), joined.keep_last(self.reach)

    def _windows(self, x_BSD: Tensor, length: int) -> Tensor:
        starts = range(0, self.reach + 1, self.dilation)
        return torch.cat([x_BSD[:, start : start + length] for start in starts], dim=-1)
