"""Encode images: a sequence of byte values becomes a grid of annotations.

    source = red, green and blue of the first pixel, of the second, ...        row by row, one id for each value
    x = 2 id / (ids - 1) - 1                                                   a grey value between -1 and 1
    stage: x = ReLU(Norm(Conv_2(x)));  x = x + ReLU(Norm(Conv_1(x)))           3 x 3 convolutions of stride 2 and 1
    annotations a_1 .. a_L = the cells of the last grid, row by row

So an image needs no change in batches, search or files; any encoder may read the same ids. Ids after the image (EOS)
are not read; missing pixels are white. Each stage halves the grid.

Cost: O(9 C^2 L) time for each convolution of C channels on L cells; sequential steps and path do not depend on L.
Paper: the annotations are those of Xu et al. 2015, arXiv:1502.03044, section 3.1.1.
Differs: the paper uses the 14 x 14 x 512 features of a fixed VGG trained on ImageNet; this small residual network is
trained with the decoder. Its norms are over one image (Wu and He 2018, arXiv:1803.08494), so that the rows of a batch
do not affect each other.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed.errors import DataError
from allyouneed.mixers.parts.kv_cache import real_first
from allyouneed.sizes import Traits

MORE = 1  # ids that may follow an image: EOS


@final
class Stage(nn.Module):
    """Two convolutions that halve the number of rows and columns."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.halve = nn.Conv2d(inputs, width, 3, stride=2, padding=1, bias=False)
        self.mix = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(1, width) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.halve(x)).relu()
        return x + self.norms[1](self.mix(x)).relu()


@final
class ImageEncoder(nn.Module):
    """A convolutional network from pixel ids to annotations (B, L, D)."""

    def __init__(self, ids: int, size: int, channels: int, filters: Sequence[int]) -> None:
        super().__init__()
        self.ids, self.size, self.channels, self.filters = ids, size, channels, tuple(filters)
        self.stages = nn.Sequential(*(Stage(*widths) for widths in pairwise([channels, *filters])))

    def forward(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Tensor:
        x = self.stages(self.pixels(source_BS, mask_BS))
        out_BLD: Tensor = x.flatten(2).transpose(1, 2)
        return out_BLD

    def pixels(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Tensor:
        """Return the image (B, channels, rows, columns)."""
        grid_BYXC = image_grid(source_BS, mask_BS, self.size, self.channels, white=self.ids - 1, more=MORE)
        x_BYXC = grid_BYXC.to(next(self.parameters()).dtype) * (2 / (self.ids - 1)) - 1
        # Channels last: the fastest layout for convolutions on a CPU, and the order of the ids.
        return x_BYXC.permute(0, 3, 1, 2)

    def flops(self) -> int:
        """Return the FLOPs for one image."""
        total, side = 0, self.size
        for inputs, width in pairwise([self.channels, *self.filters]):
            side = halved(side)
            total += 2 * 9 * side * side * width * (inputs + width)
        return total


def image_grid(
    source_BS: Tensor, mask_BS: Tensor | None, size: int, channels: int, white: int, more: int = 0
) -> Tensor:
    """Return the ids of pixels (B, rows, columns, channels); missing ones are `white`.

    Raise DataError if a source has more ids than an image, and `more` that are not read.
    """
    count = size * size * channels
    if mask_BS is not None:
        source_BS = source_BS.masked_fill(~mask_BS, white).gather(1, real_first(mask_BS))
    longest = source_BS.shape[1] if mask_BS is None else int(mask_BS.sum(dim=1).max())
    if longest > count + more:
        raise DataError(
            f"a source of {longest:,} ids; an image of {size} x {size} pixels in {channels} "
            f"channels has {count:,}: model.size and model.channels should be those of the images"
        )
    whole_BN = F.pad(source_BS, (0, max(0, count - source_BS.shape[1])), value=white)[:, :count]
    return whole_BN.unflatten(1, (size, size, channels))


def check_image_task(model: str, size: int, channels: int, task: Traits) -> None:
    """Raise ValueError if a task has no images, or images of another size."""
    if task.image is None:
        raise ValueError(f"model {model!r} reads images; task {task.type!r} has none")
    if task.image != (size, channels):
        raise ValueError(
            f"model.size={size} and model.channels={channels}: the images of task {task.type!r} have "
            f"{task.image[0]} pixels a side and {task.image[1]} channels"
        )


def halved(side: int) -> int:
    """Return the rows of the grid after a stage."""
    return -(-side // 2)


def grid_side(size: int, stages: int) -> int:
    """Return the rows of the grid after `stages` stages."""
    for _ in range(stages):
        size = halved(size)
    return size
