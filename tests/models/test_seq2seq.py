"""Recurrent sequence-to-sequence models against loops of torch's own cells, written from their papers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.inspection.maps import record_maps
from allyouneed.mixers.recurrent import Cell
from allyouneed.models.bahdanau import BahdanauDecoder, BothWaysEncoder
from allyouneed.models.luong import LuongDecoder
from allyouneed.models.parts.sequence import PlainDecoder, Tower, TowerEncoder
from allyouneed.models.seq2seq import Seq2Seq, Seq2SeqConfig
from allyouneed.sizes import Sizes

WIDTH, SOURCE, TARGET = 6, 11, 13
CELLS: dict[str, type[nn.RNNCellBase]] = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}
State = Any  # the state of a torch cell: h, or (h, c)


def built(**settings: Any) -> Seq2Seq:
    model = parse(Seq2SeqConfig, {"width": WIDTH, "embedding": 4, **settings}).build(Sizes(SOURCE, TARGET)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


def torchs(cell: Cell, more: nn.Linear | None = None) -> Any:
    """torch's cell as a function (x, state) of the same weights; `more` weights belong to the end of a longer x.

    Differentiable in them, so that gradients can be compared.
    """
    weight = cell.input.weight if more is None else torch.cat([cell.input.weight, more.weight], dim=1)
    bias = cell.past.bias if cell.past.bias is not None else torch.zeros_like(cell.input.bias)
    weights = {"weight_ih": weight, "weight_hh": cell.past.weight, "bias_ih": cell.input.bias, "bias_hh": bias}
    peer = CELLS[cell.kind](weight.shape[1], cell.width).double()
    return lambda x, state: torch.func.functional_call(peer, weights, (x, state))


def h_of(state: State) -> Tensor:
    return state[0] if isinstance(state, tuple) else state


def zeros(kind: str, rows: int) -> State:
    h = torch.zeros(rows, WIDTH, dtype=torch.float64)
    return (h, h) if kind == "lstm" else h


def embed(table: Tensor, tokens: Tensor) -> Tensor:
    return F.embedding(tokens, table) * table.shape[1] ** 0.5


def assert_equals(model: Seq2Seq, source: Tensor, target: Tensor, wanted: list[Tensor]) -> None:
    logits, _ = model.step(target, model.condition(source))
    theirs = F.linear(torch.stack(wanted, dim=1), model.head.weight_VD, model.head.bias_V)
    torch.testing.assert_close(logits, theirs)
    noise, weights = torch.randn_like(theirs), list(model.parameters())
    torch.testing.assert_close(torch.autograd.grad(logits, weights, noise), torch.autograd.grad(theirs, weights, noise))


def read_by_torch(tower: Tower, x: Tensor) -> tuple[list[Tensor], list[State]]:
    """Return every output of the top layer, and the last state of each layer."""
    rows, states = [x[:, s] for s in range(x.shape[1])], []
    for cell in tower.cells:
        assert isinstance(cell, Cell)
        step, state, outputs = torchs(cell), zeros(cell.kind, x.shape[0]), []
        for row in rows:
            state = step(row, state)
            outputs.append(h_of(state))
        rows = outputs
        states.append(state)
    return rows, states


@pytest.mark.no_shapes
@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("reverse", [False, True])
def test_without_attention_equals_sutskever(cell: str, reverse: bool) -> None:
    model = built(cell=cell, layers=2, reverse=reverse)
    source, target = torch.randint(SOURCE, (3, 5)), torch.randint(TARGET, (3, 4))
    assert isinstance(model.encoder, TowerEncoder)
    assert isinstance(model.decoder, PlainDecoder)
    x = embed(model.source.weight_VD, source)
    _, states = read_by_torch(model.encoder.tower, x.flip(1) if reverse else x)
    steps, wanted = [torchs(layer) for layer in model.decoder.tower.cells], []
    for t in range(4):
        x = embed(model.target.weight_VD, target[:, t])
        for layer, step in enumerate(steps):
            states[layer] = step(x, states[layer])
            x = h_of(states[layer])
        wanted.append(x)
    assert_equals(model, source, target, wanted)


@pytest.mark.no_shapes
@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_with_bahdanau_attention_equals_rnnsearch(cell: str) -> None:
    model = built(cell=cell, attention="bahdanau")
    source, target = torch.randint(SOURCE, (3, 5)), torch.randint(TARGET, (3, 4))
    encoder, decoder = model.encoder, model.decoder
    assert isinstance(encoder, BothWaysEncoder)
    assert isinstance(decoder, BahdanauDecoder)
    x = embed(model.source.weight_VD, source)
    forth, back = torchs(encoder.forth), torchs(encoder.back)
    left, right, state = [], [], zeros(cell, 3)
    for s in range(5):
        state = forth(x[:, s], state)
        left.append(h_of(state))
    state = zeros(cell, 3)
    for s in reversed(range(5)):
        state = back(x[:, s], state)
        right.insert(0, h_of(state))
    h = [torch.cat(both, dim=1) for both in zip(left, right, strict=True)]
    s = torch.tanh(decoder.begin(right[0]))
    state = (s, torch.zeros_like(s)) if cell == "lstm" else s
    step, wanted = torchs(decoder.cell, decoder.context), []
    w, u, v = decoder.cross.query.weight, decoder.cross.key.weight, decoder.cross.sum.weight[0]
    for t in range(4):
        e = torch.stack([torch.tanh(h_of(state) @ w.T + h_j @ u.T) @ v for h_j in h], dim=1)
        alpha = e.exp() / e.exp().sum(dim=1, keepdim=True)
        c = sum(alpha[:, j, None] * h_j for j, h_j in enumerate(h))
        y = embed(model.target.weight_VD, target[:, t])
        state = step(torch.cat([y, c], dim=1), state)
        wide = decoder.maxout(torch.cat([h_of(state), y, c], dim=1))
        wanted.append(torch.maximum(wide[:, 0::2], wide[:, 1::2]))
    assert_equals(model, source, target, wanted)


@pytest.mark.no_shapes
@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("attention", ["luong-dot", "luong-general", "luong-concat"])
def test_luong_attention_feeds_its_output_back(cell: str, attention: str) -> None:
    model = built(cell=cell, attention=attention, layers=2)
    source, target = torch.randint(SOURCE, (3, 5)), torch.randint(TARGET, (3, 4))
    decoder, cross = model.decoder, model.decoder.cross
    assert isinstance(model.encoder, TowerEncoder)
    assert isinstance(decoder, LuongDecoder)
    h, states = read_by_torch(model.encoder.tower, embed(model.source.weight_VD, source))
    lower, upper = decoder.tower.cells
    assert isinstance(lower, Cell)
    assert isinstance(upper, Cell)
    first, second = torchs(lower, decoder.feed), torchs(upper)
    attended, wanted = torch.zeros(3, WIDTH, dtype=torch.float64), []
    for t in range(4):
        y = embed(model.target.weight_VD, target[:, t])
        states[0] = first(torch.cat([y, attended], dim=1), states[0])
        states[1] = second(h_of(states[0]), states[1])
        top = h_of(states[1])
        if attention == "luong-dot":
            scores = [(top * h_s).sum(dim=1) for h_s in h]
        elif attention == "luong-general":
            scores = [(top * (h_s @ cross.key.weight.T)).sum(dim=1) for h_s in h]
        else:  # v^T tanh(W [h_t; h_s])
            both = torch.cat([cross.query.weight, cross.key.weight], dim=1)
            scores = [torch.tanh(torch.cat([top, h_s], dim=1) @ both.T) @ cross.sum.weight[0] for h_s in h]
        alpha = torch.stack(scores, dim=1).softmax(dim=1)
        c = sum(alpha[:, s, None] * h_s for s, h_s in enumerate(h))
        attended = torch.tanh(torch.cat([c, top], dim=1) @ decoder.combine.weight.T)
        wanted.append(attended)
    assert_equals(model, source, target, wanted)


@pytest.mark.parametrize("attention", ["bahdanau", "luong-dot", "luong-general", "luong-concat"])
def test_alignments_are_maps(attention: str) -> None:
    """One head, a row for each target position, zeros on padding; viewers look for the name `cross`."""
    model, source, target = built(attention=attention), torch.randint(SOURCE, (2, 5)), torch.randint(TARGET, (2, 4))
    valid = torch.tensor([[True] * 5, [True, True, False, True, False]])
    with torch.no_grad(), record_maps(model) as maps:
        model.step(target, model.condition(source, valid))
    (one,) = maps
    assert (one.name, tuple(one.weights_BHTS.shape)) == ("decoder.cross", (2, 1, 4, 5))
    torch.testing.assert_close(one.weights_BHTS.sum(dim=-1), torch.ones(2, 1, 4, dtype=torch.float64))
    assert not one.weights_BHTS[1, :, :, ~valid[1]].any()


@pytest.mark.parametrize("attention", ["none", "bahdanau", "luong-dot"])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_padded_targets_do_not_change_the_state(attention: str, cell: str) -> None:
    model, source, target = (
        built(attention=attention, cell=cell),
        torch.randint(SOURCE, (1, 5)),
        torch.randint(13, (1, 3)),
    )
    padded, valid = torch.randint(13, (1, 6)), torch.tensor([[False, True, True, False, True, False]])
    padded[valid] = target[0]
    with torch.no_grad():
        bare, state = model.step(target, model.condition(source))
        wide, after = model.step(padded, model.condition(source), valid)
        torch.testing.assert_close(wide[valid], bare[0])
        torch.testing.assert_close(model.step(target, after)[0], model.step(target, state)[0])


@pytest.mark.parametrize("attention", ["none", "bahdanau", "luong-general"])
def test_a_source_of_only_padding_gives_no_nan(attention: str) -> None:
    model = built(attention=attention)
    source, valid = torch.randint(SOURCE, (2, 3)), torch.tensor([[True] * 3, [False] * 3])
    logits, _ = model.step(torch.randint(TARGET, (2, 2)), model.condition(source, valid))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


def test_bahdanau_refuses_layers_and_reverse() -> None:
    for more in ({"layers": 2}, {"reverse": True}):
        with pytest.raises(ConfigError, match="has one layer in both directions"):
            built(attention="bahdanau", **more)


@pytest.mark.parametrize("attention", ["bahdanau", "luong-dot", "luong-general", "luong-concat"])
def test_the_length_of_an_all_padding_source_changes_nothing(attention: str) -> None:
    model = Seq2SeqConfig(attention=attention, width=8).build(Sizes(13, 13)).double().eval()  # type: ignore[arg-type]
    target_BT = torch.randint(4, 13, (1, 4))
    answers = []
    for length in (3, 5):
        source_BS, mask_BS = torch.zeros(1, length, dtype=torch.long), torch.zeros(1, length, dtype=torch.bool)
        answers.append(model.step(target_BT, model.condition(source_BS, mask_BS))[0])
    torch.testing.assert_close(*answers, rtol=0, atol=1e-12)
