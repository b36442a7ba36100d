"""What the paper of the Performer promises: an unbiased estimate whose error falls with the square root of M."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from allyouneed.mixers import Role
from allyouneed.mixers.performer import PerformerConfig, draw_directions

WIDTH = 16


def test_directions_are_orthogonal_in_blocks_and_as_long_as_gaussians() -> None:
    direction_HMK = draw_directions(2, 40, WIDTH, seed=3, draw=0).double()
    for block in (slice(0, 16), slice(16, 32), slice(32, 40)):
        unit = F.normalize(direction_HMK[:, block], dim=-1)
        torch.testing.assert_close(
            unit @ unit.mT, torch.eye(unit.shape[1]).double().expand(2, -1, -1), atol=1e-6, rtol=0
        )
    lengths = draw_directions(4, 4000, WIDTH, seed=0, draw=0).square().sum(dim=-1)
    assert abs(float(lengths.mean()) - WIDTH) < 0.3  # a chi-squared variable with K degrees of freedom
    assert abs(float(lengths.var()) - 2 * WIDTH) < 3


def test_draws_differ_and_repeat() -> None:
    first, again, other = (draw_directions(1, 8, 4, seed=1, draw=draw) for draw in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def _error(features: int, seed: int, x_BTD: Tensor) -> float:
    """Mean squared distance of a head's output from softmax attention with the same weights."""
    torch.manual_seed(0)
    mixer = PerformerConfig(heads=1, features=features).build(WIDTH, role="bidirectional").double()
    mixer.direction_HMK.copy_(draw_directions(1, features, WIDTH, seed, 0))
    q_BHTK, k_BHTK, v_BHTK = mixer.project.queries_keys_values(x_BTD)
    wanted = mixer.project.merge(F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK))
    return float((mixer(x_BTD)[0] - wanted).square().mean())


@pytest.mark.no_shapes
def test_the_error_falls_with_the_square_root_of_the_features() -> None:
    """Its squared error is O(1 / M): a slope of -1 between logarithms. Large scores have heavy tails, so small ones."""
    torch.manual_seed(0)
    x_BTD = torch.randn(1, 32, WIDTH, dtype=torch.float64) / 2
    sizes = [64, 256, 1024]
    with torch.no_grad():
        errors = [sum(_error(size, seed, x_BTD) for seed in range(24)) / 24 for size in sizes]
    slope = math.log(errors[-1] / errors[0]) / math.log(sizes[-1] / sizes[0])
    assert -1.35 < slope < -0.75


@pytest.mark.parametrize("scale", [1e-3, 1.0, 3.0])
@pytest.mark.parametrize("width", [8, 256])
@pytest.mark.parametrize("role", ["causal", "bidirectional"])
def test_float32_is_enough(scale: float, width: int, role: Role) -> None:
    """Exponents of tens to a hundred neither overflow nor vanish: float32 gives what float64 gives."""
    mixer = PerformerConfig(heads=1, features=64).build(width, role=role)
    x_BTD = torch.randn(2, 300, width) * scale
    ours_BTD = mixer(x_BTD)[0].detach()
    wanted_BTD = mixer.double()(x_BTD.double())[0].detach()
    assert wanted_BTD[:, 0].abs().max() > 1e-6 * scale
    torch.testing.assert_close(ours_BTD.double(), wanted_BTD, rtol=2e-2, atol=2e-3 * float(wanted_BTD.abs().max()))


def test_each_layer_draws_its_own() -> None:
    config = PerformerConfig(heads=1, features=4)
    assert not torch.equal(config.build(8).direction_HMK, config.build(8).direction_HMK)


def test_a_text_of_several_segments_is_read_as_one(monkeypatch):
    """Long texts go through the state in segments; that must not show, with padding and a state of their own too."""
    torch.manual_seed(0)
    mixer = PerformerConfig(heads=2, features=8).build(12).double()
    x_BTD, mask_BT = torch.randn(2, 700, 12, dtype=torch.float64), torch.rand(2, 700) < 0.9
    _, state = mixer(torch.randn(2, 5, 12, dtype=torch.float64))
    whole, after = mixer(x_BTD, mask_BT=mask_BT, state=state)
    monkeypatch.setattr("allyouneed.mixers.performer.SEGMENT", 256)
    parts, after_parts = mixer(x_BTD, mask_BT=mask_BT, state=state)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(after_parts.sum_BHMR, after.sum_BHMR)
