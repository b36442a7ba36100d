"""The block: order of norms and residuals, feed-forward layers, and dropout."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from allyouneed.block import Block, BlockConfig, FeedForward
from allyouneed.dropout import seed_dropout
from allyouneed.errors import ConfigError
from allyouneed.mixers import Memory, Mixer
from allyouneed.mixers.softmax import SoftmaxConfig

WIDTH = 12


class Spy(Mixer):
    """A mixer that doubles, records its arguments, and counts its calls in its state."""

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: Any = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, Any]:
        self.arguments = {"x": x_BTD, "valid": mask_BT, "memory": memory}
        return 2 * x_BTD, (state or 0) + 1


def block(norm: Any, crossed: bool = False, **settings: Any) -> Block:
    config = BlockConfig(norm=norm, hidden=20, **{"dropout": 0.0, **settings})
    built = Block(config, WIDTH, Spy(), Spy() if crossed else None).double()
    for parameter in built.parameters():
        nn.init.normal_(parameter, std=0.5)
    return built


def layer_norm(norm: nn.Module | None, x: Tensor) -> Tensor:
    """Return gamma (x - mean) / sqrt(variance + eps) + beta, over the features."""
    assert isinstance(norm, nn.LayerNorm)
    centred = x - x.mean(dim=-1, keepdim=True)
    return norm.weight * centred / (centred.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt() + norm.bias


def test_post_norm_is_the_paper() -> None:
    """x = Norm(x + Sublayer(x))   (section 3.1)."""
    net, x = block("post", crossed=True), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    y = layer_norm(net.mixer_norm, x + 2 * x)
    y = layer_norm(net.cross_norm, y + 2 * y)
    y = layer_norm(net.feedforward_norm, y + net.feedforward(y))
    torch.testing.assert_close(net(x)[0], y)


def test_pre_norm() -> None:
    """x = x + Sublayer(Norm(x))."""
    net, x = block("pre", crossed=True), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    y = x + 2 * layer_norm(net.mixer_norm, x)
    y = y + 2 * layer_norm(net.cross_norm, y)
    y = y + net.feedforward(layer_norm(net.feedforward_norm, y))
    torch.testing.assert_close(net(x)[0], y)


def test_norms_around_sublayers() -> None:
    """x = x + Norm'(Sublayer(Norm(x)))   (Ding et al. 2021, section 2.4)."""
    net, x = block("both", crossed=True), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    y = x + layer_norm(net.mixed_norm, 2 * layer_norm(net.mixer_norm, x))
    y = y + layer_norm(net.crossed_norm, 2 * layer_norm(net.cross_norm, y))
    y = y + layer_norm(net.fed_norm, net.feedforward(layer_norm(net.feedforward_norm, y)))
    torch.testing.assert_close(net(x)[0], y)


def test_no_norm() -> None:
    net, x = block("none", crossed=True), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    y = x + 2 * x
    y = y + 2 * y
    torch.testing.assert_close(net(x)[0], y + net.feedforward(y))
    assert not [name for name, _ in net.named_parameters() if "norm" in name]


@pytest.mark.parametrize("norm", ["pre", "none"])
def test_parallel(norm: Any) -> None:
    """x = x + Mixer(Norm(x)) + FeedForward(Norm'(x))   (Black et al. 2022, section 2.1)."""
    net, x = block(norm, parallel=True), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    inputs = [layer_norm(one, x) if norm == "pre" else x for one in (net.mixer_norm, net.feedforward_norm)]
    torch.testing.assert_close(net(x)[0], x + 2 * inputs[0] + net.feedforward(inputs[1]))


@pytest.mark.parametrize(("norm", "crossed", "streams"), [("post", False, 1), ("pre", True, 1), ("pre", False, 2)])
def test_parallel_blocks_that_do_not_exist_are_refused(norm: Any, crossed: bool, streams: Any) -> None:
    with pytest.raises(ConfigError, match=r"model.parallel=true needs model.norm='pre' or 'none', one stream"):
        block(norm, crossed, parallel=True, streams=streams)


def test_rms_norm() -> None:
    """gamma x / sqrt(mean(x^2) + eps)."""
    norm, x = BlockConfig(normalisation="rms").build_norm(WIDTH).double(), torch.randn(3, WIDTH, dtype=torch.float64)
    nn.init.normal_(norm.get_parameter("weight"))
    expected = norm.get_parameter("weight") * x / (x.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(norm(x), expected)


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_feedforward(activation: Any) -> None:
    net, x = FeedForward(3, 5, activation).double(), torch.randn(1, 2, 3, dtype=torch.float64)
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    inner = (x @ net.inner.weight.T + net.inner.bias)[0]
    if activation == "relu":
        hidden = inner.clamp(min=0)
    elif activation == "gelu":
        hidden = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
    else:
        gate, value = inner[:, :5], inner[:, 5:]
        hidden = gate / (1 + torch.exp(-gate)) * value
    torch.testing.assert_close(net(x)[0], hidden @ net.outer.weight.T + net.outer.bias)


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_feedforward_matrices_are_glorot_initialised(activation: Any) -> None:
    net = FeedForward(64, 256, activation)
    for matrix in (*net.inner.weight.detach().split(256), net.outer.weight.detach()):  # type: ignore[no-untyped-call]
        assert float(matrix.std()) == pytest.approx((2 / (64 + 256)) ** 0.5, rel=0.05)


def test_all_arguments_reach_the_mixer() -> None:
    net, x = block("pre", crossed=True), torch.randn(2, 5, WIDTH, dtype=torch.float64)
    valid, memory = torch.ones(2, 5, dtype=torch.bool), Memory(torch.randn(2, 4, WIDTH, dtype=torch.float64))
    _, state = net(x, mask_BT=valid, memory=memory)
    assert (state.mixer, state.cross) == (1, 1)
    _, state = net(x, mask_BT=valid, memory=memory, state=state)
    assert (state.mixer, state.cross) == (2, 2)
    assert isinstance(net.mixer, Spy)
    assert isinstance(net.cross, Spy)
    assert net.mixer.arguments["valid"] is valid
    assert net.mixer.arguments["memory"] is None
    assert net.cross.arguments["memory"] is memory
    assert net.cross.arguments["valid"] is None  # the mask of the memory comes with the memory


def test_dropout_acts_on_each_sublayer_before_the_residual() -> None:
    """Section 5.4. Where a sublayer is dropped, the input passes unchanged."""
    config = BlockConfig(norm="none", hidden=20, dropout=0.5)
    net = Block(config, WIDTH, Spy()).double()
    nn.init.zeros_(net.feedforward.outer.weight)
    seed_dropout(1)
    x = torch.ones(50, 4, WIDTH, dtype=torch.float64)
    y = net(x)[0]
    assert set(y.detach().unique().tolist()) == {1.0, 5.0}  # dropped: x; kept: x + 2 * 2 x
    assert torch.equal(net.eval()(x)[0], 3 * x)


def test_flops_of_the_feedforward() -> None:
    assert BlockConfig(hidden=20).feedforward_flops(12) == 2 * 2 * 12 * 20
    assert BlockConfig(hidden=20, feedforward="swiglu").feedforward_flops(12) == 2 * 3 * 12 * 20


def test_the_paper_is_the_default() -> None:
    config = BlockConfig()
    assert (config.norm, config.normalisation, config.feedforward) == ("post", "layer", "relu")
    assert (config.hidden, config.dropout, SoftmaxConfig().heads) == (2048, 0.1, 8)
