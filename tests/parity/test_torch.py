"""Against torch's own layers with the same weights: outputs and all gradients, in float64."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from allyouneed.block import Block
from allyouneed.mixers import Memory, Role
from allyouneed.mixers.softmax import Softmax, SoftmaxConfig
from allyouneed.models.encoder import EncoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.models.parts.stack import Stack, StackConfig
from allyouneed.sizes import Sizes

WIDTH, HEADS, HIDDEN = 12, 3, 20

Pair = tuple[Tensor, Tensor]  # a parameter of ours and the one of torch that must get the same gradient

every_kind = pytest.mark.parametrize("activation", ["relu", "gelu"])
every_norm = pytest.mark.parametrize("norm", ["pre", "post"])


@pytest.fixture(autouse=True)
def _float64() -> Iterable[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def stack_config(norm: Any, activation: Any) -> StackConfig:
    mixer = SoftmaxConfig(heads=HEADS)
    return StackConfig(width=WIDTH, mixer=mixer, norm=norm, feedforward=activation, hidden=HIDDEN, dropout=0.0)


def randomise(module: nn.Module) -> None:
    """Random numbers everywhere: weights that begin at zero or one could hide a wrong place."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)


def copy(ours: Tensor, theirs: Tensor) -> Pair:
    with torch.no_grad():
        ours.copy_(theirs)
    return ours, theirs


def copy_linear(ours: nn.Module, theirs: nn.Module) -> list[Pair]:
    names = [name for name, _ in theirs.named_parameters()]
    return [copy(ours.get_parameter(name), theirs.get_parameter(name)) for name in names]


def copy_attention(ours: Softmax, theirs: nn.MultiheadAttention) -> Callable[[], list[Pair]]:
    """Copies, and gives a function that pairs the gradients: both store W^Q, W^K, W^V together, but cut differently."""
    copy_linear(ours.output, theirs.out_proj)
    weight, bias = theirs.in_proj_weight, theirs.in_proj_bias
    if ours.role == "cross":
        copy(ours.query.weight, weight[:WIDTH])
        copy(ours.query.bias, bias[:WIDTH])
        copy(ours.key_value.weight, weight[WIDTH:])
        copy(ours.key_value.bias, bias[WIDTH:])
    else:
        copy(ours.query_key_value.weight, weight)
        copy(ours.query_key_value.bias, bias)

    def gradients() -> list[Pair]:
        layers = [ours.query, ours.key_value] if ours.role == "cross" else [ours.query_key_value]
        weights = torch.cat([_grad(layer.weight) for layer in layers])
        biases = torch.cat([_grad(layer.bias) for layer in layers])
        outer = [(_grad(a), _grad(b)) for a, b in _paired(ours.output, theirs.out_proj)]
        return [(weights, _grad(weight)), (biases, _grad(bias)), *outer]

    return gradients


def _grad(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def _paired(ours: nn.Module, theirs: nn.Module) -> list[Pair]:
    return [(ours.get_parameter(name), parameter) for name, parameter in theirs.named_parameters()]


def copy_block(ours: Block, theirs: nn.Module) -> Callable[[], list[Pair]]:
    """The weights of a TransformerEncoderLayer or TransformerDecoderLayer."""
    assert isinstance(ours.mixer, Softmax)
    attention = [copy_attention(ours.mixer, theirs.get_submodule("self_attn"))]  # type: ignore[arg-type]
    plain = {"feedforward.inner": "linear1", "feedforward.outer": "linear2", "mixer_norm": "norm1"}
    if ours.cross is not None:
        assert isinstance(ours.cross, Softmax)
        attention.append(copy_attention(ours.cross, theirs.get_submodule("multihead_attn")))  # type: ignore[arg-type]
        plain |= {"cross_norm": "norm2", "feedforward_norm": "norm3"}
    else:
        plain |= {"feedforward_norm": "norm2"}
    pairs = [(ours.get_submodule(mine), theirs.get_submodule(name)) for mine, name in plain.items()]
    for one, two in pairs:
        copy_linear(one, two)

    def gradients() -> list[Pair]:
        both = [pair for one, two in pairs for pair in _paired(one, two)]
        return [pair for part in attention for pair in part()] + [(_grad(a), _grad(b)) for a, b in both]

    return gradients


def copy_stack(ours: Stack, theirs: nn.TransformerEncoder | nn.TransformerDecoder) -> Callable[[], list[Pair]]:
    parts = []
    for block, layer in zip(ours.blocks, theirs.layers, strict=True):
        assert isinstance(block, Block)
        parts.append(copy_block(block, layer))
    if theirs.norm is not None:
        copy_linear(ours.norm, theirs.norm)
    return lambda: [pair for part in parts for pair in part()]


def assert_equal_backward(
    ours: Tensor, theirs: Tensor, gradients: Callable[[], list[Pair]], inputs: list[Pair]
) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    noise = torch.randn_like(ours)
    ours.backward(noise)  # type: ignore[no-untyped-call]
    theirs.backward(noise)  # type: ignore[no-untyped-call]
    for one, two in [*gradients(), *((_grad(a), _grad(b)) for a, b in inputs)]:
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def twins(*shape: int) -> Pair:
    """The same random input twice, each with its own gradient."""
    x = torch.randn(*shape)
    return x.clone().requires_grad_(), x.clone().requires_grad_()


def causal_mask(length: int) -> Tensor:
    """torch hides what is True."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


VALID_BT = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
VALID_BS = torch.tensor([[True] * 4 + [False] * 3, [True] * 7])


@pytest.mark.parametrize("role", ["causal", "bidirectional", "cross"])
@pytest.mark.parametrize("padded", [False, True])
def test_multi_head_attention(role: Role, padded: bool) -> None:
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    ours = SoftmaxConfig(heads=HEADS).build(WIDTH, role=role)
    randomise(theirs)
    gradients = copy_attention(ours, theirs)
    x, memory = twins(2, 5, WIDTH), twins(2, 7, WIDTH)
    if role == "cross":
        y, _ = ours(x[0], memory=Memory(memory[0], VALID_BS if padded else None))
        hidden = ~VALID_BS if padded else None
        z, _ = theirs(x[1], memory[1], memory[1], key_padding_mask=hidden, need_weights=False)
        assert_equal_backward(y, z, gradients, [x, memory])
    else:
        y, _ = ours(x[0], mask_BT=VALID_BT if padded else None)
        hidden = ~VALID_BT if padded else None
        mask = causal_mask(5) if role == "causal" else None
        z, _ = theirs(x[1], x[1], x[1], key_padding_mask=hidden, attn_mask=mask, need_weights=False)
        real = VALID_BT if padded else ...  # padding may hold anything, so ours reads zeros there
        assert_equal_backward(y[real], z[real], gradients, [x])


def encoder_pair(norm: str, activation: str) -> tuple[Stack, nn.TransformerEncoder, Callable[[], list[Pair]]]:
    ours = Stack(stack_config(norm, activation), 2, "bidirectional")
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, HIDDEN, 0.0, activation, batch_first=True, norm_first=norm == "pre"
    )
    last = nn.LayerNorm(WIDTH) if norm == "pre" else None
    theirs = nn.TransformerEncoder(layer, 2, last, enable_nested_tensor=False)
    randomise(theirs)
    return ours, theirs, copy_stack(ours, theirs)


@every_norm
@every_kind
@pytest.mark.parametrize("role", ["bidirectional", "causal"])
def test_encoder(norm: str, activation: str, role: Role) -> None:
    """torch's encoder with a causal mask is our decoder-only stack."""
    _, theirs, _ = encoder_pair(norm, activation)
    ours = Stack(stack_config(norm, activation), 2, role)
    gradients = copy_stack(ours, theirs)
    x = twins(2, 5, WIDTH)
    y, _ = ours(x[0], ours.start(), VALID_BT)
    mask = causal_mask(5) if role == "causal" else None
    z = theirs(x[1], mask=mask, src_key_padding_mask=~VALID_BT)
    assert_equal_backward(y[VALID_BT], z[VALID_BT], gradients, [x])


@every_norm
@every_kind
def test_decoder(norm: str, activation: str) -> None:
    ours = Stack(stack_config(norm, activation), 2, "causal", SoftmaxConfig(heads=HEADS))
    layer = nn.TransformerDecoderLayer(
        WIDTH, HEADS, HIDDEN, 0.0, activation, batch_first=True, norm_first=norm == "pre"
    )
    theirs = nn.TransformerDecoder(layer, 2, nn.LayerNorm(WIDTH) if norm == "pre" else None)
    randomise(theirs)
    gradients = copy_stack(ours, theirs)
    x, memory = twins(2, 5, WIDTH), twins(2, 7, WIDTH)
    y, _ = ours(x[0], ours.start(Memory(memory[0], VALID_BS)), VALID_BT)
    z = theirs(
        x[1],
        memory[1],
        tgt_mask=causal_mask(5),
        tgt_key_padding_mask=~VALID_BT,
        memory_key_padding_mask=~VALID_BS,
    )
    assert_equal_backward(y[VALID_BT], z[VALID_BT], gradients, [x, memory])


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@every_norm
@every_kind
def test_transformer(norm: Literal["pre", "post"], activation: Literal["relu", "gelu"]) -> None:
    """The whole model: nn.Transformer between embeddings and projection that are spelt out here."""
    config = EncoderDecoderConfig(
        width=WIDTH,
        mixer=SoftmaxConfig(heads=HEADS),
        norm=norm,
        feedforward=activation,
        hidden=HIDDEN,
        dropout=0.0,
        encoder_layers=2,
        decoder_layers=2,
    )
    ours = config.build(Sizes(source=11, target=11, shared=True))
    theirs = nn.Transformer(WIDTH, HEADS, 2, 2, HIDDEN, 0.0, activation, batch_first=True, norm_first=norm == "pre")
    if norm == "post":  # nn.Transformer norms once more after the last block; the paper does not
        theirs.encoder.norm = theirs.decoder.norm = None
    randomise(theirs)
    parts = [copy_stack(ours.encoder, theirs.encoder), copy_stack(ours.decoder, theirs.decoder)]
    embedding_VD = ours.target.weight_VD.detach().clone().requires_grad_()

    source_BS, target_BT = torch.randint(11, (2, 7)), torch.randint(11, (2, 5))
    memory = ours.encode(source_BS, VALID_BS)
    y, _ = ours.step(target_BT, ours.start(memory), VALID_BT)

    waves_TD = torch.tensor([[_wave(t, i) for i in range(WIDTH)] for t in range(7)])
    # Both masks pad on the right, so that the plain index is the position.
    z = theirs(
        embedding_VD[source_BS] * WIDTH**0.5 + waves_TD,
        embedding_VD[target_BT] * WIDTH**0.5 + waves_TD[:5],
        tgt_mask=causal_mask(5),
        src_key_padding_mask=~VALID_BS,
        tgt_key_padding_mask=~VALID_BT,
        memory_key_padding_mask=~VALID_BS,
    )
    gradients = lambda: [pair for part in parts for pair in part()]  # noqa: E731
    assert_equal_backward(
        y[VALID_BT], (z @ embedding_VD.T)[VALID_BT], gradients, [(ours.target.weight_VD, embedding_VD)]
    )


def _wave(position: int, feature: int) -> float:
    angle = torch.tensor(position / 10000 ** (2 * (feature // 2) / WIDTH))
    return float(angle.sin() if feature % 2 == 0 else angle.cos())


@every_norm
def test_encoder_model(norm: Literal["pre", "post"]) -> None:
    """A classifier: torch's encoder, the mean over real positions, a linear layer."""
    config = EncoderConfig(
        width=WIDTH, mixer=SoftmaxConfig(heads=HEADS), norm=norm, hidden=HIDDEN, dropout=0.0, layers=2
    )
    ours = config.build(Sizes(source=11, target=3))
    _, theirs, _ = encoder_pair(norm, "relu")
    gradients = copy_stack(ours.encoder, theirs)
    source_BS = torch.randint(11, (2, 7))
    waves_TD = torch.tensor([[_wave(t, i) for i in range(WIDTH)] for t in range(7)])
    table_VD = ours.source.weight_VD.detach().clone().requires_grad_()
    x_BSD = theirs(table_VD[source_BS] * WIDTH**0.5 + waves_TD, src_key_padding_mask=~VALID_BS)
    pooled_BD = torch.stack([x_BSD[b, VALID_BS[b]].mean(dim=0) for b in range(2)])
    z = nn.functional.linear(pooled_BD, ours.head.weight_VD.detach(), ours.head.bias_V)
    y = ours.classify(source_BS, VALID_BS)
    assert_equal_backward(y, z, gradients, [(ours.source.weight_VD, table_VD)])
