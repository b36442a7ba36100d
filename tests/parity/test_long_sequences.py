"""The long-sequence family against Hugging Face's models with the same weights."""

import os
from functools import partial

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("transformers", reason="transformers is not installed (extra: bench)")

from transformers import LongformerConfig as TheirConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from allyouneed.mixers.longformer import LongformerConfig


@pytest.mark.parametrize(("window", "everywhere", "length"), [(4, 2, 32), (8, 1, 16), (2, 5, 40)])
def test_longformer(window: int, everywhere: int, length: int) -> None:
    """Theirs needs lengths that are multiples of the window; forward and the gradient of the input."""
    width = 24
    ours = LongformerConfig(heads=3, window=window, everywhere=everywhere).build(width).double()
    settings = TheirConfig(
        hidden_size=width, num_attention_heads=3, attention_window=[2 * window], attention_probs_dropout_prob=0.0
    )
    theirs = LongformerSelfAttention(settings, layer_id=0).double().eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(std=0.4)
        stored = [ours.project.query_key_value, ours.global_query, ours.global_key_value]
        weights = torch.cat([layer.weight for layer in stored]).split(width)
        biases = torch.cat([layer.bias for layer in stored]).split(width)
        names = ["query", "key", "value", "query_global", "key_global", "value_global"]
        for name, weight, bias in zip(names, weights, biases, strict=True):
            getattr(theirs, name).weight.copy_(weight)
            getattr(theirs, name).bias.copy_(bias)
    x_BTD = torch.randn(2, length, width, dtype=torch.float64, requires_grad=True)
    is_global_BT = (torch.arange(length) < everywhere).expand(2, -1)
    y_BTD = theirs(
        x_BTD,
        attention_mask=torch.where(is_global_BT, 10000.0, 0.0).double(),
        is_index_masked=torch.zeros(2, length, dtype=torch.bool),
        is_index_global_attn=is_global_BT,
        is_global_attn=True,
    )[0]
    our_y_BTD, their_y_BTD = ours(x_BTD)[0], ours.project.output(y_BTD)
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)  # their softmax is always in float32
    close(our_y_BTD, their_y_BTD)
    noise_BTD = torch.randn_like(our_y_BTD)
    close(*(torch.autograd.grad(y, x_BTD, noise_BTD)[0] for y in (our_y_BTD, their_y_BTD)))
