"""The output tape of the Extended Neural GPU: what was said is written beside the image, which changes with every word.

    d_0 = the encoder's last image,   p_0 = 0 everywhere
    P(y_k) = softmax(O d_k[0, k] + b)                                            k = 0, 1, .. until the end is said
    p_(k+1) = p_k, and E'[y_k] at [0, k];   d_(k+1) = CGRU^d(d_k, p_(k+1))       (`layers` of them, each with its own W)
    u = f(U_u * d + W_u * p + b_u),   r = f(U_r * d + W_r * p + b_r),   c = g(U_c * (r . d) + W_c * p + b_c)
    CGRU^d(d, p) = u . d + (1 - u) . c

W * p is linear in p, and p gains one symbol a step: so what a symbol adds to the cells around its place is one product
for all symbols of a text, and the sum W * p is carried along instead of p.

The image is as wide as the encoder left it. Where an answer goes on beyond that it grows by a column of zeros a word:
d_k has at least k + 1 columns.

Cost: O(n W D^2) time for every token; each waits for the one before.
Paper: Kaiser and Bengio 2016, arXiv:1610.08613.
Differs: f and g have the encoder's limits; the tape is written in the image's first row (the authors' program writes it
in all rows, and takes a step before the first word); while training the tape always holds the right words.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed.mixers.parts.projections import full_precision
from allyouneed.mixers.parts.state import join_padded
from allyouneed.models.parts.cgru import CGRU


@dataclass(frozen=True)
class TapeState:
    """The image, and what the tape tells its cells."""

    image_BWLD: Tensor
    told_BRCN: Tensor  # W * p of all layers, for the rows that a symbol reaches; one column more, before the first
    columns_B: Tensor | None  # how wide each row's image was at first; None: all of it is every row's
    seen: int | Tensor = 0  # real tokens so far: one number, or one for each row (B)

    def by_row(self) -> tuple[Tensor, Tensor]:
        """How wide each row's image was at first (B), and its real tokens so far (B)."""
        B, _, L, _ = self.image_BWLD.shape
        zero_B = torch.zeros(B, dtype=torch.long, device=self.image_BWLD.device)
        return zero_B + (L if self.columns_B is None else self.columns_B), zero_B + self.seen

    def apart(self) -> "TapeState":
        """The same, its rows ready to go on by different numbers of words."""
        columns_B, seen_B = self.by_row()
        return replace(self, columns_B=columns_B, seen=seen_B)

    @staticmethod
    def join(nodes: "Sequence[TapeState]", count_P: Tensor | None) -> "TapeState":
        """Images of different widths side by side, without columns that only rows that have left needed."""
        rows = [node.by_row() for node in nodes]
        widths = [int(torch.maximum(columns, seen + 1).max()) for columns, seen in rows]
        images = [node.image_BWLD[:, :, :width] for node, width in zip(nodes, widths, strict=True)]
        told = [node.told_BRCN[:, :, : width + 1] for node, width in zip(nodes, widths, strict=True)]
        columns_B, seen_B = (torch.cat(list(parts)) for parts in zip(*rows, strict=True))
        return TapeState(join_padded(images, 2), join_padded(told, 2), columns_B, seen_B)

    def reaching(self) -> "TapeState":
        """The same with a column for the next word."""
        more = int(torch.as_tensor(self.seen).max()) + 1 - self.image_BWLD.shape[2]
        if more <= 0:
            return self
        image_BWLD, told_BRCN = (F.pad(one, (0, 0, 0, more)) for one in (self.image_BWLD, self.told_BRCN))
        return replace(self, image_BWLD=image_BWLD, told_BRCN=told_BRCN)

    def real(self) -> Tensor | None:
        """Which columns (B, L) are real; None: all."""
        if self.columns_B is None:
            return None
        width_B = torch.maximum(self.columns_B, torch.as_tensor(self.seen, device=self.columns_B.device) + 1)
        return torch.arange(self.image_BWLD.shape[2], device=width_B.device) < width_B[:, None]

    def read(self) -> Tensor:
        """(B, D): the cell from which the next word is said."""
        if isinstance(self.seen, int):
            return self.image_BWLD[:, 0, self.seen]
        return self.image_BWLD[torch.arange(len(self.seen), device=self.seen.device), 0, self.seen]


class Tape(nn.Module):
    def __init__(self, ids: int, units: Sequence[CGRU]) -> None:
        super().__init__()
        D, (above, beside) = units[0].channels, units[0].shape.around
        self.layers = nn.ModuleList(units)
        self.said_VD = nn.Parameter(torch.empty(ids, D).uniform_(-0.5, 0.5))
        # A symbol stands in the first row: of a kernel of 3 x 3 it meets the middle row and the one before.
        self.reach = (above + 1, 2 * beside + 1)
        self.write = nn.Linear(D, self.reach[0] * self.reach[1] * 3 * D * len(units), bias=False)
        bound = (3 / (D * units[0].gates.weight[0, 0].numel())) ** 0.5  # as for a convolution of D to D channels
        nn.init.uniform_(self.write.weight, -bound, bound)

    def start(self, image_BWLD: Tensor, mask_BL: Tensor | None) -> TapeState:
        """Nothing is said yet."""
        B, _, L, D = image_BWLD.shape
        told_BRCN = image_BWLD.new_zeros(B, self.reach[0], L + 1, 3 * D * len(self.layers))
        return TapeState(image_BWLD, told_BRCN, None if mask_BL is None else mask_BL.sum(dim=1))

    def run(self, tokens_BT: Tensor, state: TapeState, real_B: Tensor | None = None) -> tuple[Tensor, TapeState]:
        """What follows each token is said from these vectors (B, T, D). The first of a text, its beginning, is no word
        of the answer, and does not go on the tape.

        `real_B`: how many tokens of each row, from the left, are real; what follows them leaves no trace.
        """
        if real_B is not None or isinstance(state.seen, Tensor):
            state = state.apart()
        x = []
        with full_precision(tokens_BT):  # many steps add up their rounding
            written = self.write(F.embedding(tokens_BT, self.said_VD)).unflatten(2, (*self.reach, -1))
            for t, written_BRXN in enumerate(written.unbind(dim=1)):
                state = state.reaching()
                if isinstance(state.seen, int):
                    state = self._step(written_BRXN, state) if state.seen else state
                    x.append(state.read())
                    state = replace(state, seen=state.seen + 1)
                else:
                    here_B = torch.ones_like(state.seen).bool() if real_B is None else real_B > t
                    state = self._step_some(written_BRXN, state, here_B & (state.seen > 0))
                    x.append(state.read())
                    state = replace(state, seen=state.seen + here_B.long())
        return torch.stack(x, dim=1), state

    def _step(self, written_BRXN: Tensor, state: TapeState) -> TapeState:
        """One more symbol on the tape, and the image after it."""
        image_BWLD, D = state.image_BWLD, state.image_BWLD.shape[3]
        # The symbol stands before the column that is to be read, and tells that column and two before it.
        seen = torch.as_tensor(state.seen, device=image_BWLD.device).view(-1, 1)
        place = (seen - 1).clamp(min=0) + torch.arange(self.reach[1], device=image_BWLD.device)
        told_BRCN = state.told_BRCN.scatter_add(2, place[:, None, :, None].expand_as(written_BRXN), written_BRXN)
        real_BL = state.real()
        for layer, told_BRLG in zip(self.layers, told_BRCN[:, :, 1:].split(3 * D, dim=3), strict=True):
            image_BWLD, _ = layer(image_BWLD, real_BL, told_BRLG)
        return replace(state, image_BWLD=image_BWLD, told_BRCN=told_BRCN)

    def _step_some(self, written_BRXN: Tensor, state: TapeState, going_B: Tensor) -> TapeState:
        """The same for some rows; the others stay as they are."""
        going = going_B[:, None, None, None]
        after = self._step(written_BRXN * going, state)
        return replace(after, image_BWLD=torch.where(going, after.image_BWLD, state.image_BWLD))

    def flops(self, rows: int, columns: int, tokens: int) -> int:
        """FLOPs of so many tokens, the first of which is no word, after an image of so many rows and columns."""
        widths = (max(columns, place + 1) for place in range(1, tokens))
        steps = sum(layer.flops(rows * width) for width in widths for layer in self.layers)  # type: ignore[operator]
        return 2 * tokens * self.write.weight.numel() + steps
