"""Recurrences against torch's own with the same weights, the ways of running them against each other, and how they
begin."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from allyouneed.errors import ConfigError
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.mixers import MIXERS
from allyouneed.mixers.recurrent import GATES, Cell, CellKind, Recurrent, RecurrentState
from allyouneed.models.decoder import DecoderConfig
from allyouneed.sizes import Sizes

PEERS: dict[CellKind, type[nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
every_kind = pytest.mark.parametrize("kind", list(GATES))
every_way = pytest.mark.parametrize("way", ["fused", "plain"])


def ways(way: str) -> Any:
    """The plain way is the one that is taken where operations are counted."""
    return sdpa_kernel([SDPBackend.MATH] if way == "plain" else [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])


def copy(cell: Cell, peer: nn.RNNBase, suffix: str = "") -> list[tuple[Tensor, Tensor]]:
    """The peer's weights; pairs of tensors whose gradients must agree."""
    theirs = {
        name: peer.get_parameter(f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }
    with torch.no_grad():
        cell.input.weight.copy_(theirs["weight_ih"])
        cell.past.weight.copy_(theirs["weight_hh"])
        cell.input.bias.copy_(theirs["bias_ih"])
        if cell.kind == "gru":
            cell.past.bias.copy_(theirs["bias_hh"])
        else:
            cell.input.bias += theirs["bias_hh"]
    pairs = [(cell.input.weight, theirs["weight_ih"]), (cell.past.weight, theirs["weight_hh"])]
    pairs.append((cell.input.bias, theirs["bias_ih"]))
    return [*pairs, (cell.past.bias, theirs["bias_hh"])] if cell.kind == "gru" else pairs


def assert_same(ours: list[Tensor], theirs: list[Tensor], pairs: list[tuple[Tensor, Tensor]]) -> None:
    torch.testing.assert_close(ours, theirs)
    noise = [torch.randn_like(x) for x in theirs]
    mine, yours = zip(*pairs, strict=True)
    torch.testing.assert_close(torch.autograd.grad(ours, mine, noise), torch.autograd.grad(theirs, yours, noise))


@every_kind
@every_way
def test_it_is_torchs_own_with_the_same_weights(kind: CellKind, way: str) -> None:
    """From a state that is not zero: every output, the last state, and all gradients."""
    cell, peer = Cell(kind, 5, 7).double(), PEERS[kind](5, 7, batch_first=True).double()
    pairs = copy(cell, peer)
    x_BTD = torch.randn(3, 6, 5, dtype=torch.float64, requires_grad=True)
    h_BK, c_BK = (torch.randn(3, 7, dtype=torch.float64, requires_grad=True) for _ in range(2))
    pairs += [(x_BTD, x_BTD), (h_BK, h_BK)]
    with ways(way):
        if kind == "lstm":
            pairs.append((c_BK, c_BK))
            y_BTK, state = cell(x_BTD, RecurrentState(h_BK, c_BK))
            wanted_BTK, (h_1BK, c_1BK) = peer(x_BTD, (h_BK[None], c_BK[None]))
            assert_same([y_BTK, state.h_BK, state.c_BK], [wanted_BTK, h_1BK[0], c_1BK[0]], pairs)
        else:
            y_BTK, state = cell(x_BTD, RecurrentState(h_BK))
            wanted_BTK, h_1BK = peer(x_BTD, h_BK[None])
            assert_same([y_BTK, state.h_BK], [wanted_BTK, h_1BK[0]], pairs)


@every_kind
@every_way
def test_both_ways_it_is_torchs_own_over_packed_rows(kind: CellKind, way: str) -> None:
    mixer = MIXERS[kind].model_validate({}).build(8, role="bidirectional").double()
    assert isinstance(mixer, Recurrent)
    peer = PEERS[kind](8, 4, batch_first=True, bidirectional=True).double()
    pairs = copy(mixer.forth, peer) + copy(mixer.back, peer, "_reverse")
    x_BTD, length_B = torch.randn(4, 6, 8, dtype=torch.float64), torch.tensor([6, 3, 1, 5])
    mask_BT = torch.arange(6) < length_B[:, None]
    packed = nn.utils.rnn.pack_padded_sequence(x_BTD, length_B, batch_first=True, enforce_sorted=False)
    wanted_BTK, _ = nn.utils.rnn.pad_packed_sequence(peer(packed)[0], batch_first=True)
    with ways(way):
        y_BTK, _ = mixer(x_BTD, mask_BT=mask_BT)
        assert_same([y_BTK[mask_BT]], [wanted_BTK[mask_BT]], pairs)


@every_kind
def test_a_gradient_through_the_last_state_alone(kind: CellKind) -> None:
    """An encoder whose outputs are not read: the slow way and the fast one agree."""
    cell, x_BTD = Cell(kind, 5, 5).double(), torch.randn(2, 4, 5, dtype=torch.float64)
    found = []
    for way in ("fused", "plain"):
        with ways(way):
            _, state = cell(x_BTD, cell.start(x_BTD, 2))
            last = state.h_BK if state.c_BK is None else state.c_BK
            found.append(torch.autograd.grad(last.square().sum(), cell.parameters()))
    torch.testing.assert_close(*found)


@every_kind
def test_how_it_begins(kind: CellKind) -> None:
    cell = Cell(kind, 6, 8)
    for matrix_KK in cell.past.weight.split(8):
        torch.testing.assert_close(matrix_KK @ matrix_KK.T, torch.eye(8))
    biases = cell.input.bias.detach().view(-1, 8)
    assert [float(part.min()) for part in biases] == ([0, 1, 0, 0] if kind == "lstm" else [0] * GATES[kind])
    assert torch.equal(biases.amin(dim=1), biases.amax(dim=1))


@every_kind
def test_laid_out_for_prediction_it_says_the_same(kind: CellKind) -> None:
    settings = {"mixer": kind, "layers": 2, "width": 8, "hidden": 8, "positions": "none"}
    model = DecoderConfig.model_validate(settings).build(Sizes(9, 9)).eval()
    tokens_BT = torch.randint(9, (2, 5))
    with torch.inference_mode():
        before_BTV, _ = model.step(tokens_BT, model.start())
        optimize_for_inference(model)
        state = model.start()
        torch.testing.assert_close(model.step(tokens_BT, state)[0], before_BTV)
        for t in range(5):
            logits_BV, state = model.advance(tokens_BT[:, t], state)
            torch.testing.assert_close(logits_BV, before_BTV[:, t])


def test_an_odd_width_has_no_half() -> None:
    with pytest.raises(ConfigError, match="9 is odd; a bidirectional gru needs half of it each way"):
        MIXERS["gru"].model_validate({}).build(9, role="bidirectional")
