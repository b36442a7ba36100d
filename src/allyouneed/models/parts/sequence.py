"""Parts of recurrent sequence-to-sequence models: encoders, decoders and their states."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor, nn

from allyouneed.mixers import Memory, select_rows
from allyouneed.mixers.recurrent import Cell, CellKind, RecurrentState, cell_flops, run
from allyouneed.models.parts.alignment import Alignment, Annotations


@dataclass(frozen=True)
class Encoded(Memory):
    """A vector for each source position, and the last state of each layer, from the bottom up."""

    last: tuple[RecurrentState, ...] = ()

    def select(self, rows_B: Tensor) -> "Encoded":
        memory = super().select(rows_B)
        return Encoded(memory.x_BSD, memory.mask_BS, select_rows(self.last, rows_B))


@dataclass(frozen=True)
class SequenceState:
    """The state of a decoder."""

    cells: tuple[RecurrentState, ...]
    read: Annotations | None = None  # the source, if the decoder attends to it
    fed_BK: Tensor | None = None  # the last output of Luong's decoder


class SequenceEncoder(nn.Module, ABC):
    """The encoder of a source."""

    @abstractmethod
    def forward(self, x_BSE: Tensor, mask_BS: Tensor | None) -> Encoded:
        """Encode the whole source."""

    __call__: Callable[..., Encoded]

    @abstractmethod
    def flops(self, length: int) -> int:
        """Return the FLOPs for one source."""


class SequenceDecoder(nn.Module, ABC):
    """The decoder of a target: from embeddings to the vectors that the head projects."""

    out_width: int

    @abstractmethod
    def start(self, memory: Encoded) -> SequenceState:
        """Return the state before the first token."""

    @abstractmethod
    def forward(
        self, x_BTE: Tensor, state: SequenceState, mask_BT: Tensor | None = None
    ) -> tuple[Tensor, SequenceState]:
        """Decode any number of new positions."""

    __call__: Callable[..., tuple[Tensor, SequenceState]]

    @abstractmethod
    def flops(self, source: int, target: int) -> int:
        """Return the FLOPs for one target."""


class AttendingDecoder(Protocol):
    """A recurrence that attends to the source before each step."""

    cross: Alignment
    cell: Cell
    context: nn.Linear  # the context's term beside W x


def attend_and_step(
    decoder: AttendingDecoder,
    x_BTE: Tensor,
    state: SequenceState,
    mask_BT: Tensor | None,
    gate: nn.Linear | None = None,
) -> tuple[Tensor, Tensor, list[Tensor], RecurrentState]:
    """Return h (B, T, K), contexts (B, T, D) and weights (B, S) of every position, and the last state.

    A gate scales each context by a number computed from h.
    """
    assert state.read is not None
    (carried,), outputs, contexts, alphas = state.cells, [], [], []
    x_TBN, weight_DN = decoder.cell.input(x_BTE.transpose(0, 1)), decoder.context.weight.T
    for t, x_BN in enumerate(x_TBN.unbind()):
        context_BD, alpha_BS = decoder.cross(carried.h_BK, state.read)
        if gate is not None:
            context_BD = gate(carried.h_BK).sigmoid() * context_BD
        after = decoder.cell.step(torch.addmm(x_BN, context_BD, weight_DN), carried)
        carried = after if mask_BT is None else after.where(mask_BT[:, t], carried)
        outputs.append(carried.h_BK)
        contexts.append(context_BD)
        alphas.append(alpha_BS)
    decoder.cross.report(alphas)
    return torch.stack(outputs, dim=1), torch.stack(contexts, dim=1), alphas, carried


class Tower(nn.Module):
    """A stack of recurrences, from the left."""

    def __init__(self, kind: CellKind, inputs: int, width: int, layers: int) -> None:
        super().__init__()
        self.kind, self.inputs, self.width = kind, inputs, width
        self.cells = nn.ModuleList(Cell(kind, inputs if layer == 0 else width, width) for layer in range(layers))

    def forward(
        self, x: Tensor, mask_BT: Tensor | None, states: tuple[RecurrentState, ...] | None
    ) -> tuple[Tensor, tuple[RecurrentState, ...]]:
        """Map (B, T, ..) -> (B, T, K); return it with the last state of each layer."""
        last = []
        for layer, cell in enumerate(self.cells):
            assert isinstance(cell, Cell)
            x, state = run(cell, x, mask_BT, None if states is None else states[layer])
            last.append(state)
        return x, tuple(last)

    def flops(self, length: int) -> int:
        """Return the FLOPs for one sequence."""
        inner = (len(self.cells) - 1) * cell_flops(self.kind, length, self.width, self.width)
        return cell_flops(self.kind, length, self.inputs, self.width) + inner


@final
class TowerEncoder(SequenceEncoder):
    """A stack of recurrences from the left, or (Sutskever) from the right."""

    def __init__(self, tower: Tower, reverse: bool) -> None:
        super().__init__()
        self.tower, self.reverse = tower, reverse

    def forward(self, x_BSE: Tensor, mask_BS: Tensor | None) -> Encoded:
        if self.reverse:
            h_BSK, last = self.tower(x_BSE.flip(1), None if mask_BS is None else mask_BS.flip(1), None)
            return Encoded(h_BSK.flip(1), mask_BS, last)
        h_BSK, last = self.tower(x_BSE, mask_BS, None)
        return Encoded(h_BSK, mask_BS, last)

    def flops(self, length: int) -> int:
        return self.tower.flops(length)


@final
class PlainDecoder(SequenceDecoder):
    """A decoder without attention: it depends on the source only through its start states."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower, self.out_width = tower, tower.width

    def start(self, memory: Encoded) -> SequenceState:
        return SequenceState(memory.last)

    def forward(
        self, x_BTE: Tensor, state: SequenceState, mask_BT: Tensor | None = None
    ) -> tuple[Tensor, SequenceState]:
        h_BTK, last = self.tower(x_BTE, mask_BT, state.cells)
        return h_BTK, SequenceState(last)

    def flops(self, source: int, target: int) -> int:
        return self.tower.flops(target)
