"""Local attention: what the contract does not say."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from allyouneed.mixers import Role
from allyouneed.mixers.base import send_maps_to
from allyouneed.mixers.local import Local, LocalConfig
from helpers import assert_same_gradients


def build(block: int, role: Role = "causal") -> Local:
    mixer = LocalConfig(heads=2, block=block).build(12, role=role).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(std=0.4)
    return mixer


def block_mask(T: int, block: int, role: Role) -> Tensor:
    place = torch.arange(T)
    same_TT = place[:, None] // block == place // block
    return same_TT.tril() if role == "causal" else same_TT


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
@pytest.mark.parametrize(("block", "length"), [(4, 1), (4, 4), (4, 5), (4, 16), (7, 50), (1, 9), (64, 30)])
def test_it_is_attention_under_a_mask_of_blocks(block: int, length: int, role: Role) -> None:
    """Against torch's own attention, forward and gradient."""
    mixer = build(block, role)
    x_BTD = torch.randn(2, length, 12, dtype=torch.float64, requires_grad=True)
    q, k, v = mixer.project.queries_keys_values(x_BTD)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=block_mask(length, block, role))
    assert_same_gradients(mixer(x_BTD)[0], mixer.project.merge(y), [x_BTD, *mixer.parameters()])


def test_a_state_holds_the_current_block_only() -> None:
    mixer = build(4)
    state = None
    for length, kept in [(3, 3), (1, 0), (1, 1), (9, 2), (2, 0), (5, 1)]:
        _, state = mixer(torch.randn(1, length, 12, dtype=torch.float64), state=state)
        assert state.kv_cache.length == kept
        assert state.kv_cache.tensor.untyped_storage().nbytes() <= 8 * 24 * (4 + 16 + 8)  # and no view of more


def test_maps_show_blocks() -> None:
    mixer, maps = build(4), []
    x_BTD = torch.randn(2, 10, 12, dtype=torch.float64)
    with send_maps_to(lambda _, alpha_BHTS: maps.append(alpha_BHTS)):
        mixer(x_BTD)
    (alpha_BHTS,) = maps
    assert torch.equal(alpha_BHTS > 0, block_mask(10, 4, "causal").expand(2, 2, -1, -1))
