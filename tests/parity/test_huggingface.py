"""Against Hugging Face transformers, where it is installed: positions, norm and gated feed-forward. No network."""

import math
import os
from typing import Any

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
pytest.importorskip("transformers", reason="transformers is not installed (extra: bench)")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

from transformers.models.bloom.modeling_bloom import build_alibi_tensor  # noqa: E402
from transformers.models.llama.configuration_llama import LlamaConfig  # noqa: E402
from transformers.models.llama.modeling_llama import (  # noqa: E402
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)
from transformers.models.t5.modeling_t5 import T5Attention  # noqa: E402

from allyouneed.block import BlockConfig, FeedForward  # noqa: E402
from allyouneed.positions import Alibi, Rotary, T5Bias  # noqa: E402


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (16, 1000)])
def test_t5_buckets(causal: bool, buckets: int, max_distance: int) -> None:
    distance = torch.arange(-2000, 2001)
    bucket: Any = T5Attention._relative_position_bucket
    theirs = bucket(distance, not causal, buckets, max_distance)
    assert torch.equal(T5Bias(1, buckets, max_distance, causal).bucket(distance), theirs)


def test_rotary() -> None:
    config = LlamaConfig(hidden_size=24, num_attention_heads=3, max_position_embeddings=64)
    q_BHTK, k_BHTK, position_BT = torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8), torch.randint(40, (2, 7))
    cos, sin = LlamaRotaryEmbedding(config)(q_BHTK, position_BT)
    theirs = apply_rotary_pos_emb(q_BHTK, k_BHTK, cos, sin)
    rotary = Rotary(8, 10000.0)
    ours = rotary.rotate(q_BHTK, position_BT), rotary.rotate(k_BHTK, position_BT)
    torch.testing.assert_close(ours, tuple(theirs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 2, 8, 16])
def test_alibi(heads: int) -> None:
    """Bloom adds slope * s, ALiBi subtracts slope * (t - s): a softmax over s does not see the difference."""
    theirs_HS = build_alibi_tensor(torch.ones(1, 9, dtype=torch.long), heads, torch.float32).squeeze(1)
    position_T = torch.arange(9)
    ours_HTS = Alibi(heads).bias(torch.zeros(1, heads, 9, 2), position_T, position_T)
    hidden_TS = torch.ones(9, 9, dtype=torch.bool).triu(1)
    ours = ours_HTS.masked_fill(hidden_TS, -math.inf).softmax(dim=-1)
    theirs = theirs_HS[:, None].expand(-1, 9, -1).masked_fill(hidden_TS, -math.inf).softmax(dim=-1)
    torch.testing.assert_close(ours, theirs)


def test_rms_norm() -> None:
    ours, theirs = BlockConfig(normalisation="rms").build_norm(12), LlamaRMSNorm(12, eps=1e-6)
    scale_D, x_BTD = torch.randn(12), torch.randn(2, 5, 12)
    for norm in (ours, theirs):
        norm.get_parameter("weight").data.copy_(scale_D)
    torch.testing.assert_close(ours(x_BTD), theirs(x_BTD))


def test_swiglu() -> None:
    mlp: Any = LlamaMLP
    theirs = mlp(LlamaConfig(hidden_size=12, intermediate_size=20, num_attention_heads=1, mlp_bias=True))
    ours = FeedForward(12, 20, "swiglu")
    with torch.no_grad():
        for name in ("weight", "bias"):
            both = torch.cat([theirs.gate_proj.get_parameter(name), theirs.up_proj.get_parameter(name)])
            ours.inner.get_parameter(name).copy_(both)
            ours.outer.get_parameter(name).copy_(theirs.down_proj.get_parameter(name))
    x_BTD = torch.randn(2, 5, 12)
    torch.testing.assert_close(ours(x_BTD), theirs(x_BTD))
