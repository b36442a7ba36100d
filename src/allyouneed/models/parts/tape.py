"""The output tape of the Extended Neural GPU: each generated symbol changes the image.

    d_0 = the encoder's last image,   p_0 = 0 everywhere
    P(y_k) = softmax(O d_k[0, k] + b)                                            k = 0, 1, .. until EOS
    p_(k+1) = p_k, and E'[y_k] at [0, k];   d_(k+1) = CGRU^d(d_k, p_(k+1))       (`layers` of them, each with its own W)
    u = f(U_u * d + W_u * p + b_u),   r = f(U_r * d + W_r * p + b_r),   c = g(U_c * (r . d) + W_c * p + b_c)
    CGRU^d(d, p) = u . d + (1 - u) . c

W * p is linear in p, and p gains one symbol per step. So the contributions of all symbols of a text to the cells around
them are one product, and the state holds the sum W * p instead of p.

The image is as wide as the encoder's. For a longer target it grows by a column of zeros per token: d_k has at least
k + 1 columns.

Cost: O(n W D^2) time per token; each step depends on the previous one.
Paper: Kaiser and Bengio 2016, arXiv:1610.08613.
Differs: f and g have the encoder's limits; the tape is written in the image's first row (the authors' program writes it
in all rows, and takes a step before the first token); in training the tape always has the reference tokens.
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
    """The image, and the tape's contribution to its cells."""

    image_BWLD: Tensor
    tape_BRCN: Tensor  # W * p of all layers, for the rows that a symbol reaches; one extra column at the left
    columns_B: Tensor | None  # initial width of each row's image; None: the full width
    seen: int | Tensor = 0  # real tokens so far: one number, or one for each row (B)

    def widths_and_seen(self) -> tuple[Tensor, Tensor]:
        """Return the initial width of each row's image (B), and its real tokens so far (B)."""
        B, _, L, _ = self.image_BWLD.shape
        zero_B = torch.zeros(B, dtype=torch.long, device=self.image_BWLD.device)
        return zero_B + (L if self.columns_B is None else self.columns_B), zero_B + self.seen

    def per_row(self) -> "TapeState":
        """Return the same state with widths and counts per row, so that rows can differ."""
        columns_B, seen_B = self.widths_and_seen()
        return replace(self, columns_B=columns_B, seen=seen_B)

    @staticmethod
    def join(nodes: "Sequence[TapeState]", count_P: Tensor | None) -> "TapeState":
        """Return images of different widths as one batch, without columns that no remaining row needs."""
        rows = [node.widths_and_seen() for node in nodes]
        widths = [int(torch.maximum(columns, seen + 1).max()) for columns, seen in rows]
        images = [node.image_BWLD[:, :, :width] for node, width in zip(nodes, widths, strict=True)]
        tapes = [node.tape_BRCN[:, :, : width + 1] for node, width in zip(nodes, widths, strict=True)]
        columns_B, seen_B = (torch.cat(list(parts)) for parts in zip(*rows, strict=True))
        return TapeState(join_padded(images, 2), join_padded(tapes, 2), columns_B, seen_B)

    def with_next_column(self) -> "TapeState":
        """Return the same state with a column for the next token."""
        more = int(torch.as_tensor(self.seen).max()) + 1 - self.image_BWLD.shape[2]
        if more <= 0:
            return self
        image_BWLD, tape_BRCN = (F.pad(one, (0, 0, 0, more)) for one in (self.image_BWLD, self.tape_BRCN))
        return replace(self, image_BWLD=image_BWLD, tape_BRCN=tape_BRCN)

    def real(self) -> Tensor | None:
        """Return the mask (B, L) of real columns; None: all are."""
        if self.columns_B is None:
            return None
        width_B = torch.maximum(self.columns_B, torch.as_tensor(self.seen, device=self.columns_B.device) + 1)
        return torch.arange(self.image_BWLD.shape[2], device=width_B.device) < width_B[:, None]

    def read(self) -> Tensor:
        """Return the cell (B, D) from which the next token is predicted."""
        if isinstance(self.seen, int):
            return self.image_BWLD[:, 0, self.seen]
        return self.image_BWLD[torch.arange(len(self.seen), device=self.seen.device), 0, self.seen]


class Tape(nn.Module):
    def __init__(self, ids: int, units: Sequence[CGRU]) -> None:
        super().__init__()
        D, (above, beside) = units[0].channels, units[0].shape.around
        self.layers = nn.ModuleList(units)
        self.said_VD = nn.Parameter(torch.empty(ids, D).uniform_(-0.5, 0.5))
        # A symbol is in the first row: only the middle row of a 3 x 3 kernel and the one before it reach it.
        self.reach = (above + 1, 2 * beside + 1)
        self.write = nn.Linear(D, self.reach[0] * self.reach[1] * 3 * D * len(units), bias=False)
        bound = (3 / (D * units[0].gates.weight[0, 0].numel())) ** 0.5  # as for a convolution of D to D channels
        nn.init.uniform_(self.write.weight, -bound, bound)

    def start(self, image_BWLD: Tensor, mask_BL: Tensor | None) -> TapeState:
        """Return the state with an empty tape."""
        B, _, L, D = image_BWLD.shape
        tape_BRCN = image_BWLD.new_zeros(B, self.reach[0], L + 1, 3 * D * len(self.layers))
        return TapeState(image_BWLD, tape_BRCN, None if mask_BL is None else mask_BL.sum(dim=1))

    def run(self, tokens_BT: Tensor, state: TapeState, real_B: Tensor | None = None) -> tuple[Tensor, TapeState]:
        """Return the vectors (B, T, D) that predict the next token at each position, and the state.

        The first token of a text is BOS and is not written on the tape. `real_B`: the number of real tokens of each
        row, from the left; the others have no effect.
        """
        if real_B is not None or isinstance(state.seen, Tensor):
            state = state.per_row()
        x = []
        with full_precision(tokens_BT):  # rounding errors accumulate over many steps
            written = self.write(F.embedding(tokens_BT, self.said_VD)).unflatten(2, (*self.reach, -1))
            for t, written_BRXN in enumerate(written.unbind(dim=1)):
                state = state.with_next_column()
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
        """Write one more symbol on the tape and update the image."""
        image_BWLD, D = state.image_BWLD, state.image_BWLD.shape[3]
        # The symbol is in the column before the one that is read next; it affects that column and two before it.
        seen = torch.as_tensor(state.seen, device=image_BWLD.device).view(-1, 1)
        place = (seen - 1).clamp(min=0) + torch.arange(self.reach[1], device=image_BWLD.device)
        tape_BRCN = state.tape_BRCN.scatter_add(2, place[:, None, :, None].expand_as(written_BRXN), written_BRXN)
        real_BL = state.real()
        for layer, tape_BRLG in zip(self.layers, tape_BRCN[:, :, 1:].split(3 * D, dim=3), strict=True):
            image_BWLD, _ = layer(image_BWLD, real_BL, tape_BRLG)
        return replace(state, image_BWLD=image_BWLD, tape_BRCN=tape_BRCN)

    def _step_some(self, written_BRXN: Tensor, state: TapeState, going_B: Tensor) -> TapeState:
        """Run `_step` for some rows; the others stay unchanged."""
        going = going_B[:, None, None, None]
        after = self._step(written_BRXN * going, state)
        return replace(after, image_BWLD=torch.where(going, after.image_BWLD, state.image_BWLD))

    def flops(self, rows: int, columns: int, tokens: int) -> int:
        """Return the FLOPs for `tokens` tokens, BOS included, after an image of `rows` and `columns`."""
        widths = (max(columns, place + 1) for place in range(1, tokens))
        steps = sum(layer.flops(rows * width) for width in widths for layer in self.layers)  # type: ignore[operator]
        return 2 * tokens * self.write.weight.numel() + steps
