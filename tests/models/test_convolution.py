"""ByteNet and ConvS2S against loops written from their papers' equations, and their own properties.

The laws that all models share are in tests/contracts/test_models.py.
"""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed.config import parse
from allyouneed.errors import ConfigError, DataError
from allyouneed.inspection.maps import record_maps
from allyouneed.mixers import select_rows
from allyouneed.mixers.parts.conv_window import ConvWindow
from allyouneed.mixers.parts.kv_cache import CrossState
from allyouneed.models import Model
from allyouneed.models.bytenet import ByteNet, ByteNetConfig, MultiplicativeBlock, ReluBlock
from allyouneed.models.convs2s import ConvS2S, ConvS2SConfig, GatedConvolution, MultiStepAttention, NormedLinear
from allyouneed.models.parts.convolution import Columns
from allyouneed.sizes import Sizes

BYTENET = {"width": 12, "dilations": [1, 2], "encoder_sets": 1, "decoder_sets": 2}
CONVS2S = {"width": 12, "channels": 10, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
SIZES = Sizes(11, 13)


def randomised(module: nn.Module) -> nn.Module:
    """Return the module in float64 with random numbers in every parameter."""
    for parameter in module.double().parameters():
        nn.init.normal_(parameter, std=0.4)
    return module


def bytenet(**settings: object) -> ByteNet:
    model = randomised(parse(ByteNetConfig, {**BYTENET, **settings}).build(SIZES))
    assert isinstance(model, ByteNet)
    return model


def convs2s(**settings: object) -> ConvS2S:
    model = randomised(parse(ConvS2SConfig, {**CONVS2S, **settings}).build(SIZES))
    assert isinstance(model, ConvS2S)
    return model


def assert_same(fast: Tensor, slow: Tensor, inputs: list[Tensor]) -> None:
    """Require the same outputs and the same gradients of every input and weight."""
    torch.testing.assert_close(fast, slow)
    noise = torch.randn_like(slow)
    torch.testing.assert_close(torch.autograd.grad(fast, inputs, noise), torch.autograd.grad(slow, inputs, noise))


def looped(x_BSD: Tensor, window: ConvWindow, weight_ON: Tensor, bias_O: Tensor, ahead: int = 0) -> Tensor:
    """y_t = b + sum_j W_j x_(t - (k - 1 - j) d + ahead), by position and tap; zeros beyond both ends."""
    B, S, D = x_BSD.shape
    steps = []
    for t in range(S):
        y_BO = bias_O.expand(B, -1)
        for j in range(window.kernel):
            place = t - (window.kernel - 1 - j) * window.dilation + ahead
            if 0 <= place < S:
                y_BO = y_BO + x_BSD[:, place] @ weight_ON[:, j * D : (j + 1) * D].T
        steps.append(y_BO)
    return torch.stack(steps, dim=1)


def weights(window: ConvWindow, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    weight = torch.randn(outputs, window.kernel * inputs, dtype=torch.float64, requires_grad=True)
    return weight, torch.randn(outputs, dtype=torch.float64, requires_grad=True)


TAPS = [ConvWindow(1), ConvWindow(2), ConvWindow(3), ConvWindow(3, 2), ConvWindow(2, 5), ConvWindow(5, 3)]


@pytest.mark.parametrize("window", TAPS, ids=str)
def test_masked_windows_are_the_equation_and_torchs_convolution(window: ConvWindow) -> None:
    x_BTD = torch.randn(2, 11, 3, dtype=torch.float64, requires_grad=True)
    weight, bias = weights(window, 3, 4)
    windows, _ = window.causal(x_BTD, window.start(x_BTD, 3))
    fast = F.linear(windows, weight, bias)
    assert_same(fast, looped(x_BTD, window, weight, bias), [x_BTD, weight, bias])
    kernel = weight.view(4, window.kernel, 3).mT
    slow = F.conv1d(F.pad(x_BTD.mT, (window.reach, 0)), kernel, bias, dilation=window.dilation).mT
    assert_same(F.linear(windows, weight, bias), slow, [x_BTD, weight, bias])


@pytest.mark.parametrize("window", TAPS, ids=str)
def test_centred_windows_are_the_equation_and_torchs_convolution(window: ConvWindow) -> None:
    x_BTD = torch.randn(2, 11, 3, dtype=torch.float64, requires_grad=True)
    weight, bias = weights(window, 3, 4)
    fast = F.linear(window.centred(x_BTD), weight, bias)
    ahead = (window.kernel - 1) // 2 * window.dilation
    assert_same(fast, looped(x_BTD, window, weight, bias, ahead), [x_BTD, weight, bias])
    if window.kernel % 2:
        kernel = weight.view(4, window.kernel, 3).mT
        slow = F.conv1d(x_BTD.mT, kernel, bias, dilation=window.dilation, padding="same").mT
        assert_same(F.linear(window.centred(x_BTD), weight, bias), slow, [x_BTD, weight, bias])


@pytest.mark.parametrize("window", TAPS, ids=str)
@torch.no_grad()
def test_a_cache_is_never_longer_than_its_reach(window: ConvWindow) -> None:
    x_BTD = torch.randn(2, 40, 3, dtype=torch.float64)
    whole_BTN, _ = window.causal(x_BTD, window.start(x_BTD, 3))
    past = window.start(x_BTD, 3)
    for t, x_BD in enumerate(x_BTD.unbind(1)):
        windows_BN, past = window.advance(x_BD, past)
        assert torch.equal(windows_BN, whole_BTN[:, t])
        assert past.length == window.reach


def normed(layer: nn.LayerNorm, x_BD: Tensor) -> Tensor:
    """Layer norm as in its paper: over the features of one position."""
    mean_B1 = x_BD.mean(dim=1, keepdim=True)
    variance_B1 = ((x_BD - mean_B1) ** 2).mean(dim=1, keepdim=True)
    return (x_BD - mean_B1) / (variance_B1 + layer.eps).sqrt() * layer.weight + layer.bias


def relu(x: Tensor) -> Tensor:
    return x * (x > 0)


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def position_by_position(layer: nn.Linear, x_BTD: Tensor) -> Tensor:
    return torch.stack([x_BD @ layer.weight.T + layer.bias for x_BD in x_BTD.unbind(1)], dim=1)


def each(layer: nn.LayerNorm, x_BTD: Tensor) -> Tensor:
    return torch.stack([normed(layer, x_BD) for x_BD in x_BTD.unbind(1)], dim=1)


def relu_block(block: ReluBlock, x_BTD: Tensor) -> Tensor:
    h = position_by_position(block.narrow, relu(each(block.norm, x_BTD)))
    h = looped(relu(each(block.inner_norm, h)), block.window, block.convolution.weight, block.convolution.bias)
    return x_BTD + position_by_position(block.widen, relu(each(block.last_norm, h)))


def unit(h_BTF: Tensor, gates: list[Tensor]) -> Tensor:
    g_1, g_2, g_3 = (sigmoid(gate) for gate in gates[:3])
    return g_1 * torch.tanh(g_2 * h_BTF + g_3 * torch.tanh(gates[3]))


def multiplicative_block(block: MultiplicativeBlock, x_BTD: Tensor) -> Tensor:
    h = each(block.inner_norm, position_by_position(block.narrow, relu(each(block.norm, x_BTD))))
    four = zip(block.gates.weight.chunk(4), block.gates.bias.chunk(4), strict=True)
    h = each(block.last_norm, unit(h, [looped(h, block.window, weight, bias) for weight, bias in four]))
    four = zip(block.last_gates.weight.chunk(4), block.last_gates.bias.chunk(4), strict=True)
    h = unit(h, [looped(h, ConvWindow(1), weight, bias) for weight, bias in four])
    return x_BTD + position_by_position(block.widen, h)


@pytest.mark.parametrize("kind", ["relu", "multiplicative"])
@pytest.mark.parametrize("window", [ConvWindow(3, 2), ConvWindow(2, 1)], ids=str)
def test_bytenets_blocks_are_their_equations(kind: str, window: ConvWindow) -> None:
    config = parse(ByteNetConfig, {**BYTENET, "block": kind})
    block = randomised(ReluBlock(config, window) if kind == "relu" else MultiplicativeBlock(config, window))
    assert isinstance(block, ReluBlock | MultiplicativeBlock)
    x_BTD = torch.randn(2, 7, 12, dtype=torch.float64, requires_grad=True)
    inner = block.enter(x_BTD)
    fast = block.leave(x_BTD, inner, block.window.causal(inner, block.window.start(inner, block.inner))[0])
    slow = relu_block(block, x_BTD) if isinstance(block, ReluBlock) else multiplicative_block(block, x_BTD)
    assert_same(fast, slow, [x_BTD, *block.parameters()])


def test_encoder_convolutions_read_both_directions_decoder_ones_only_earlier() -> None:
    """Dilations 1, 2, 4 with kernel 3 reach 2 (1 + 2 + 4) = 14 positions: a path of 3 layers, not of 7."""
    model = bytenet(dilations=[1, 2, 4], decoder_sets=1)
    x_BTD = torch.randn(1, 40, 12, dtype=torch.float64, requires_grad=True)
    caches = model.start(model.encode(torch.zeros(1, 1, dtype=torch.long))).caches
    (written,) = torch.autograd.grad(model.decoder.write(x_BTD, caches, None)[0][0, 20].sum(), x_BTD)
    (read,) = torch.autograd.grad(model.encoder.read(x_BTD, None)[0, 20].sum(), x_BTD)
    assert written[0].abs().sum(dim=1).nonzero().flatten().tolist() == list(range(6, 21))
    assert read[0].abs().sum(dim=1).nonzero().flatten().tolist() == list(range(13, 28))


@torch.no_grad()
def test_columns_end_as_in_the_paper_and_are_zero_beyond() -> None:
    model = bytenet(unfold=1.5, unfold_more=1)
    source_BS = torch.randint(4, 11, (2, 6))
    mask_BS = torch.tensor([[True] * 6, [True] * 3 + [False] * 3])
    columns = model.start(model.encode(source_BS, mask_BS)).source
    filled = columns.x_NLD.abs().sum(dim=2) > 0
    assert filled.sum(dim=1).tolist() == [10, 6]  # 1.5 * 6 + 1, and 1.5 * 3 + 1 rounded up
    assert columns.at(8, 4).abs().sum(dim=2).bool().tolist() == [[True, True, False, False], [False] * 4]
    assert columns.at(30, 2).shape == (2, 2, 12)


@torch.no_grad()
def test_columns_of_rows_at_different_steps_and_of_beams() -> None:
    columns = Columns(torch.randn(2, 5, 3))
    seen_B = torch.tensor([1, 1, 4, 9])
    beams = select_rows(columns, torch.tensor([0, 0, 1, 1]))
    assert beams.sharing == 2
    for row, seen in enumerate(seen_B.tolist()):
        assert torch.equal(beams.at(seen_B, 3)[row], columns.at(seen, 3)[row // 2])
        assert torch.equal(beams.at(seen, 3)[row], columns.at(seen, 3)[row // 2])


def glu_block(block: GatedConvolution, x_BTF: Tensor) -> Tensor:
    both = looped(x_BTF, block.window, row_normed(block.linear), block.linear.bias)
    a_BTF, b_BTF = both.chunk(2, dim=-1)
    return (a_BTF * sigmoid(b_BTF) + x_BTF) * math.sqrt(0.5)


def row_normed(linear: NormedLinear) -> Tensor:
    """w = g v / |v|, row by row."""
    rows = [g * v / (v @ v).sqrt() for g, v in zip(linear.scale, linear.direction, strict=True)]
    return torch.stack(rows)


def test_the_gated_convolution_is_its_equation() -> None:
    block = randomised(GatedConvolution(parse(ConvS2SConfig, CONVS2S)))
    assert isinstance(block, GatedConvolution)
    x_BTF = torch.randn(2, 7, 10, dtype=torch.float64, requires_grad=True)
    fast = block.leave(x_BTF, block.window.causal(x_BTF, block.window.start(x_BTF, 10))[0])
    assert_same(fast, glu_block(block, x_BTF), [x_BTF, *block.parameters()])


def attention_loop(
    attention: MultiStepAttention, h_BTF: Tensor, g_BTD: Tensor, z_BSD: Tensor, e_BSD: Tensor, lengths: list[int]
) -> Tensor:
    """Compute equations 1 and 2 query by query and slot by slot, with the factors of section 3.4."""
    half = math.sqrt(0.5)
    w_query, w_output = row_normed(attention.query), row_normed(attention.output)
    rows = []
    for b, m in enumerate(lengths):
        steps = []
        for i in range(h_BTF.shape[1]):
            d_D = (w_query @ h_BTF[b, i] + attention.query.bias + g_BTD[b, i]) * half
            score = [torch.exp(d_D @ z_BSD[b, j]) for j in range(m)]
            total = sum(score[1:], start=score[0])
            terms = [score[j] / total * (z_BSD[b, j] + e_BSD[b, j]) * half for j in range(m)]
            c_D = math.sqrt(m) * sum(terms[1:], start=terms[0])
            steps.append((w_output @ c_D + attention.output.bias + h_BTF[b, i]) * half)
        rows.append(torch.stack(steps))
    return torch.stack(rows)


def test_multi_step_attention_is_its_equation() -> None:
    model = convs2s()
    attention = model.decoder.blocks[0].cross
    assert isinstance(attention, MultiStepAttention)
    h, g = (torch.randn(2, 4, n, dtype=torch.float64, requires_grad=True) for n in (10, 12))
    z, e = (torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True) for _ in range(2))
    valid = torch.arange(5) < torch.tensor([[5], [3]])
    memory = model.encode(torch.zeros(2, 5, dtype=torch.long), valid)
    source = model.start(type(memory)(torch.cat([z, e], dim=-1), valid)).source
    assert isinstance(source, CrossState)
    fast = attention(h, g, source)
    slow = attention_loop(attention, h, g, z, e, [5, 3])
    assert_same(fast, slow, [h, g, z, e, *attention.parameters()])


def test_gradients_into_the_encoder_are_divided_by_twice_the_attentions() -> None:
    """But not those that reach the embeddings through c = sum a (z + e)."""
    model, source_BS = convs2s(decoder_layers=3), torch.randint(11, (2, 5))
    z_BSD, e_BSD = model.encoder(source_BS, None)
    weight = model.encoder.output.bias
    (through_z,) = torch.autograd.grad(z_BSD.sum(), weight, retain_graph=True)
    torch.testing.assert_close(through_z, torch.full_like(weight, 2 * 5 / (2 * 3)))
    (through_e,) = torch.autograd.grad(e_BSD.sum(), model.encoder.embedding.weight_VD)
    counts = source_BS.flatten().bincount(minlength=11).double()
    torch.testing.assert_close(through_e, counts[:, None].expand(-1, 12))


def test_weight_normalisation_starts_with_the_papers_matrices() -> None:
    linear = NormedLinear(300, 200, gain=4.0, dropout=0.25)
    x = torch.randn(7, 300)
    torch.testing.assert_close(linear(x), x @ linear.direction.T, rtol=1e-4, atol=1e-4)
    assert float(linear.direction.detach().std()) == pytest.approx(math.sqrt(4 * 0.75 / 300), rel=0.02)
    model = ConvS2SConfig(encoder_layers=1, decoder_layers=1, width=64, channels=64).build(Sizes(500, 500))
    assert float(model.decoder.embedding.weight_VD.detach().std()) == pytest.approx(0.1, rel=0.05)


def test_the_variance_is_preserved_through_fifteen_layers() -> None:
    """The purpose of sections 3.4 and 3.5: it neither explodes nor vanishes."""
    model = ConvS2SConfig(width=64, channels=64, dropout=0.0).build(Sizes(50, 50))
    with torch.no_grad():
        z_BSD, e_BSD = model.encoder(torch.randint(50, (8, 20)), None)
    assert 0.2 < float(z_BSD.std() / e_BSD.std()) < 5


@torch.no_grad()
def test_every_layer_sends_its_attention_weights() -> None:
    model = convs2s()
    source_BS = torch.randint(4, 11, (2, 5))
    mask_BS = torch.arange(5) < torch.tensor([[5], [3]])
    with record_maps(model) as maps:
        model.step(torch.randint(4, 13, (2, 4)), model.condition(source_BS, mask_BS))
    assert [one.name for one in maps] == ["decoder.blocks.0.cross", "decoder.blocks.1.cross"]
    for one in maps:
        assert one.weights_BHTS.shape == (2, 1, 4, 5)
        torch.testing.assert_close(one.weights_BHTS.sum(dim=-1), torch.ones(2, 1, 4, dtype=torch.float64))
        assert float(one.weights_BHTS[1, ..., 3:].abs().max()) == 0.0


def both() -> list[Model]:
    return [bytenet(), bytenet(block="multiplicative"), convs2s()]


@pytest.mark.parametrize("number", range(3))
@torch.no_grad()
def test_padding_between_the_tokens_of_a_source_changes_nothing(number: int) -> None:
    model = both()[number].eval()
    source_BS, target_BT = torch.randint(4, 11, (1, 5)), torch.randint(4, 13, (1, 6))
    mask_BN = torch.tensor([[False, True, True, False, False, True, False, True, True]])
    padded_BN = torch.randint(11, (1, 9)).masked_scatter(mask_BN, source_BS)
    alone, _ = model.step(target_BT, model.condition(source_BS))
    torch.testing.assert_close(model.step(target_BT, model.condition(padded_BN, mask_BN))[0], alone)


@pytest.mark.parametrize("number", range(3))
@torch.no_grad()
def test_padding_between_the_tokens_of_a_target_changes_nothing(number: int) -> None:
    """Rows end at different steps, are read in two calls, and continue token by token."""
    model = both()[number].eval()
    source_BS, target_BT = torch.randint(4, 11, (2, 5)), torch.randint(4, 13, (2, 6))
    mask_BN = torch.tensor([[0, 1, 1, 0, 1, 0, 1, 0], [1, 1, 0, 0, 0, 0, 1, 0]]).bool()
    taken = [4, 3]
    padded_BN = torch.randint(13, (2, 8))
    for row, count in enumerate(taken):
        padded_BN[row, mask_BN[row]] = target_BT[row, :count]
    alone_BTV, _ = model.step(target_BT, model.condition(source_BS))
    state = model.condition(source_BS)
    steps = []
    for begin, end in pairwise([0, 3, 8]):
        logits, state = model.step(padded_BN[:, begin:end], state, mask_BN[:, begin:end])
        steps.append(logits)
    next_B = target_BT[torch.arange(2), torch.tensor(taken)]
    next_BV, _ = model.advance(next_B, state)
    for row, count in enumerate(taken):
        torch.testing.assert_close(torch.cat(steps, dim=1)[row, mask_BN[row]], alone_BTV[row, :count])
        torch.testing.assert_close(next_BV[row], alone_BTV[row, count])


@pytest.mark.parametrize("number", range(3))
@torch.no_grad()
def test_a_source_without_tokens_gives_no_nan(number: int) -> None:
    model = both()[number].eval()
    state = model.condition(torch.zeros(2, 3, dtype=torch.long), torch.tensor([[True] * 3, [False] * 3]))
    assert bool(model.step(torch.randint(4, 13, (2, 4)), state)[0].isfinite().all())


def test_positions_end_in_a_clear_error_or_not_at_all() -> None:
    model = convs2s(positions={"type": "learned", "max_length": 4})
    with pytest.raises(DataError, match="max_length"):
        model.condition(torch.zeros(1, 5, dtype=torch.long))
    unlimited = convs2s(positions="sinusoidal")
    assert unlimited.encode(torch.zeros(1, 2000, dtype=torch.long)).x_BSD.shape[1] == 2000
    with pytest.raises(ConfigError, match="learned or sinusoidal"):
        convs2s(positions="rotary")


@pytest.mark.parametrize("number", range(3))
def test_a_source_is_required(number: int) -> None:
    with pytest.raises(ConfigError, match="no source was given"):
        both()[number].start()
