"""The Neural Turing Machine's memory against loops written from the paper's equations, and tokens that are bits."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from allyouneed.config import parse
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.inspection.maps import record_maps
from allyouneed.mixers import select_rows
from allyouneed.models.ntm import NTM, NTMConfig, bit_table
from allyouneed.models.parts.ntm_run import NTMShape, run
from allyouneed.sizes import Sizes
from helpers import tensors_of


def split_parameters(params_BN: Tensor, heads: int, writes: int, width: int) -> list[Tensor]:
    """Return keys, adds, erases, gates, betas, gammas and shifts of each row and head."""
    sizes = [heads * width, writes * width, writes * width, heads, heads, heads, 3 * heads]
    parts = params_BN.split(sizes, dim=1)
    counts = [heads, writes, writes, heads, heads, heads, heads]
    return [part.unflatten(1, (count, -1)) for part, count in zip(parts, counts, strict=True)]


def by_the_paper(
    memory: Tensor, before: Tensor, params: Tensor, reads: int
) -> tuple[list[list[list[Tensor]]], list[list[list[Tensor]]], list[list[list[Tensor]]]]:
    """Compute equations 2 to 9 with loops over single numbers; memory (B, K, M) as in the model."""
    B, K, M = memory.shape
    heads = before.shape[1]
    writes = heads - reads
    keys, adds, erases, gates, betas, gammas, shifts = split_parameters(params, heads, writes, K)
    memories, weights, read_vectors = [], [], []
    for b in range(B):
        slots = [[memory[b, k, i] for k in range(K)] for i in range(M)]
        looked = []
        for h in range(heads):
            key, beta = keys[b, h].tanh(), F.softplus(betas[b, h, 0])
            cosines = []
            for slot in slots:
                dot = sum(u * v for u, v in zip(key, slot, strict=True))
                cosines.append(
                    dot / (sum(u * u for u in key).sqrt() * sum(v * v for v in slot).sqrt())  # type: ignore[union-attr]
                )
            scores = [(beta * cosine).exp() for cosine in cosines]
            content = [score / sum(scores) for score in scores]
            g = gates[b, h, 0].sigmoid()
            gated = [g * content[i] + (1 - g) * before[b, h, i] for i in range(M)]
            s = dict(zip((1, 0, -1), shifts[b, h].softmax(0), strict=True))
            shifted = [sum(gated[j] * s.get((i - j + 1) % M - 1, 0) for j in range(M)) for i in range(M)]
            gamma = 1 + F.softplus(gammas[b, h, 0])
            sharp = [value**gamma for value in shifted]
            looked.append([value / sum(sharp) for value in sharp])
        written = [row[:] for row in slots]
        for h in range(writes):
            erase = erases[b, h].sigmoid()
            written = [[written[i][k] * (1 - looked[reads + h][i] * erase[k]) for k in range(K)] for i in range(M)]
        for h in range(writes):
            add = adds[b, h].tanh()
            written = [[written[i][k] + looked[reads + h][i] * add[k] for k in range(K)] for i in range(M)]
        memories.append([[written[i][k] for i in range(M)] for k in range(K)])
        weights.append(looked)
        read_vectors.append(
            [[sum(looked[h][i] * written[i][k] for i in range(M)) for k in range(K)] for h in range(reads)]
        )
    return memories, weights, read_vectors


def stacked(nested: object) -> Tensor:
    return nested if isinstance(nested, Tensor) else torch.stack([stacked(item) for item in nested])  # type: ignore[attr-defined]


def inputs_of_run(B: int, K: int, M: int, T: int, shape: NTMShape) -> list[Tensor]:
    """Return all differentiable inputs of `run`, in its order; the controller has 2 cells."""
    heads, gates = shape.reads + shape.writes, 8 if shape.recurrent else 2
    fed_back = shape.reads * K + (2 if shape.recurrent else 0)
    sizes = [(T, B, gates), (B, 2), (B, 2), (B, K, M), (B, heads, M), (B, shape.reads, K), (gates, fed_back)]
    sizes += [(sum(shape.parameter_sizes()), 2), (sum(shape.parameter_sizes()),)]
    values = [torch.randn(size, dtype=torch.float64) for size in sizes]
    values[4] = values[4].softmax(dim=2)
    return [value.requires_grad_() for value in values]


def run_by_the_paper(inputs: list[Tensor], shape: NTMShape) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run with torch's cell as the controller and the loops as the memory."""
    x_TBG, h, c, memory, weight, read, recurrence, tell, tell_bias = inputs
    outputs, weights = [], []
    for x in x_TBG:
        if shape.recurrent:
            order = torch.tensor([0, 1, 2, 3, 6, 7, 4, 5])  # ours: i f o g; torch: i f g o
            both = torch.cat([h, read.flatten(1)], dim=1)
            params = (x + both @ recurrence.T)[:, order]
            zeros = params.new_zeros(8, 2)
            h, c = torch.lstm_cell(params, (h, c), torch.eye(8, dtype=params.dtype), zeros)  # type: ignore[call-overload]
        else:
            h = (x + read.flatten(1) @ recurrence.T).tanh()
        memory, weight, read = (
            stacked(part) for part in by_the_paper(memory, weight, h @ tell.T + tell_bias, shape.reads)
        )
        outputs.append(torch.cat([h, read.flatten(1)], dim=1))
        weights.append(weight)
    return torch.stack(outputs), c, memory, torch.stack(weights)


SHAPES = [
    NTMShape(True, 1, 1, 3),
    NTMShape(False, 1, 1, 3),
    NTMShape(True, 2, 1, 3),
    NTMShape(False, 1, 2, 3),
    NTMShape(True, 2, 3, 3),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_run_is_the_papers_equations(shape: NTMShape) -> None:
    inputs = inputs_of_run(2, 3, 5, 3, shape)
    fast, slow = run(*inputs, shape), run_by_the_paper(inputs, shape)  # type: ignore[call-arg, arg-type]
    noises = [torch.randn_like(part) for part in slow]
    for ours, theirs in zip(fast, slow, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    ours_all, theirs_all = (torch.autograd.grad(outputs, inputs, noises, allow_unused=True) for outputs in (fast, slow))
    for ours, theirs in zip(ours_all, theirs_all, strict=True):
        if theirs is not None:  # without recurrence the hidden state before is not read
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8)


ALONE = NTMShape(True, 0, 1, 3)  # nothing is read: the controller works alone


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[4], ALONE], ids=str)
def test_gradients_are_those_of_small_differences(shape: NTMShape) -> None:
    inputs = inputs_of_run(1, 3, 4, 2, shape)
    assert torch.autograd.gradcheck(lambda *x: run(*x, shape), inputs)


def test_a_shift_moves_on_and_around_the_end() -> None:
    """A head that shifts its previous weights by one visits the slots in order, then starts again."""
    model = NTMConfig(slots=4, slot_width=2, hidden=3).build(Sizes(13, 13))
    gates, gammas, shifts = slice(8, 10), slice(12, 14), slice(14, 20)
    with torch.no_grad():
        model.heads.weight.zero_()
        model.heads.bias[gates], model.heads.bias[gammas] = -50, 5
        model.heads.bias[shifts] = torch.tensor(
            [50.0, -50, -50, -50, -50, 50]
        )  # the reader moves forward, the writer back
        with record_maps(model) as maps:
            model.encode(torch.zeros(1, 5, dtype=torch.long))
    (one,) = maps
    assert one.weights_BHTS[0].argmax(dim=2).T.tolist() == [[1, 3], [2, 2], [3, 1], [0, 0], [1, 3]]


def test_one_place_and_empty_slots_give_no_nan() -> None:
    """Weights of exactly 0 and 1, and identical slots, for many steps."""
    model = NTMConfig(slots=6, slot_width=4, hidden=3).build(Sizes(13, 13))
    logits_BTV, _ = model.step(torch.zeros(2, 40, dtype=torch.long), model.condition(torch.full((2, 40), 5)))
    logits_BTV.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_bits_of_ids() -> None:
    table_VN = bit_table(4 + 8 + 2, 3)
    assert table_VN[4 + 6].tolist() == [1, 1, 0] + 6 * [0] + [1]
    assert table_VN[4].tolist() == 9 * [0] + [1]  # a vector of zeros is not the same as no input
    others = [0, 1, 2, 3, 12, 13]
    assert table_VN[others].argmax(dim=1).tolist() == [3, 4, 5, 6, 7, 8]
    assert table_VN[others].sum() == 6
    assert bit_table(2, 8).shape == (2, 11)  # smaller than its special ids


def machine(**settings: object) -> NTM:
    model = NTMConfig(hidden=7, slots=6, slot_width=4, embedding="bits", bits=3, **settings).build(Sizes(13, 13))  # type: ignore[arg-type]
    return model.double()


def test_the_softmax_over_vectors_is_a_product_of_bernoullis() -> None:
    model = machine()
    source_BS, target_BT = torch.randint(4, 12, (2, 5)), torch.randint(4, 12, (2, 6))
    y_BTD, _ = model._run(torch.zeros(2, 6, 28, dtype=torch.float64), model.condition(source_BS), None)
    assert model.output is not None
    z_BTN = model.output(y_BTD)
    logits_BTV, _ = model.step(target_BT, model.condition(source_BS))
    logprob_BT = logits_BTV.log_softmax(-1).gather(2, target_BT[:, :, None])[:, :, 0]
    bits_BTN = bit_table(13, 3)[target_BT].double()
    bce_BT = F.binary_cross_entropy_with_logits(z_BTN[..., :3], bits_BTN[..., :3], reduction="none").sum(-1)
    others_BT = torch.cat([torch.zeros(2, 6, 1), z_BTN[..., 3:]], dim=2).logsumexp(2)  # ids that are not vectors
    torch.testing.assert_close(-logprob_BT, bce_BT + others_BT)
    best_BT = logits_BTV[:, :, 4:12].argmax(dim=2)
    torch.testing.assert_close(best_BT, ((z_BTN[..., :3] > 0) * torch.tensor([4, 2, 1])).sum(2))


def test_a_fixed_table_is_not_a_parameter_and_not_saved() -> None:
    model = machine()
    hidden, reads, keys = 7, 4, 2 * 4 + 2 * 4 + 6 * 2
    gates = 4 * hidden * (hidden + reads + 1) + 4 * hidden * (3 + 5 + 1)
    assert model.parameter_count() == gates + keys * (hidden + 1) + (3 + 5) * (hidden + reads + 1)
    assert not [name for name in model.state_dict() if "table" in name or "head.weight" in name]
    source_BS, target_BT = torch.randint(4, 12, (2, 5)), torch.randint(4, 12, (2, 6))
    before_BTV = model.step(target_BT, model.condition(source_BS))[0]
    optimize_for_inference(model)
    torch.testing.assert_close(model.step(target_BT, model.condition(source_BS))[0], before_BTV)


@pytest.mark.parametrize("feedback", [False, True])
def test_earlier_tokens_are_read_only_with_feedback(feedback: bool) -> None:
    model = machine(feedback=feedback)
    source_BS, target_BT = torch.randint(4, 12, (2, 5)), torch.randint(4, 12, (2, 6))
    other_BT = 4 + (target_BT - 3) % 8
    one, two = (model.step(tokens_BT, model.condition(source_BS))[0] for tokens_BT in (target_BT, other_BT))
    assert torch.equal(one, two) is not feedback


def test_padding_may_be_anywhere() -> None:
    model = machine()
    source_BS, target_BT = torch.randint(4, 12, (3, 7)), torch.randint(4, 12, (3, 2))
    mask_BS = torch.tensor([[0, 1, 0, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]]).bool()
    together_BTV = model.step(target_BT, model.condition(source_BS, mask_BS))[0]
    alone_BTV = model.step(target_BT[:1], model.condition(source_BS[:1, [1, 3, 4]]))[0]
    torch.testing.assert_close(together_BTV[:1], alone_BTV)
    empty_BTV = model.step(target_BT[2:], model.condition(source_BS[2:], mask_BS[2:]))[0]
    torch.testing.assert_close(together_BTV[2:], empty_BTV)


@pytest.mark.parametrize("padded", [False, True])
def test_weightings_are_maps(padded: bool) -> None:
    model = machine(read_heads=2)
    source_BS = torch.randint(4, 12, (2, 5))
    mask_BS = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 1, 1]]).bool()
    with record_maps(model) as maps, torch.no_grad():
        state = model.condition(source_BS, mask_BS if padded else None)
        model.step(source_BS[:, :3], state)
    assert [one.name for one in maps] == ["heads", "heads"]
    assert [tuple(one.weights_BHTS.shape) for one in maps] == [(2, 3, 5, 6), (2, 3, 3, 6)]
    sums_BHT = maps[0].weights_BHTS.sum(dim=3)
    expected_BT = mask_BS.double() if padded else torch.ones(2, 5, dtype=torch.float64)
    torch.testing.assert_close(sums_BHT, expected_BT[:, None].expand(2, 3, 5))
    torch.testing.assert_close(maps[0].weights_BHTS[:, :, 4], state.weight_BHM)


def test_rows_of_an_encoded_source_can_be_selected() -> None:
    model = machine()
    source_BS, target_BT, row_N = torch.randint(4, 12, (3, 5)), torch.randint(4, 12, (3, 2)), torch.tensor([2, 0])
    chosen = select_rows(model.encode(source_BS), row_N)
    torch.testing.assert_close(
        model.step(target_BT[row_N], model.start(chosen))[0],
        model.step(target_BT, model.condition(source_BS))[0][row_N],
    )
    torch.testing.assert_close(chosen.x_BSD, model.encode(source_BS[row_N]).x_BSD)


def test_a_state_does_not_keep_the_source_alive() -> None:
    """No leaf is a small view of something that grows with the source."""
    model = parse(NTMConfig, {"hidden": 6, "slots": 5, "slot_width": 4}).build(Sizes(9, 9))
    with torch.no_grad():
        short, long = (model.condition(torch.randint(4, 9, (2, length))) for length in (2, 40))
    for one, two in zip(tensors_of(short), tensors_of(long), strict=True):
        assert two.untyped_storage().nbytes() == one.untyped_storage().nbytes()
