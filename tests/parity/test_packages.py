"""Memory-compressed attention against the package of that name with the same weights."""

import math

import pytest
import torch

pytest.importorskip("memory_compressed_attention", reason="memory-compressed-attention is not installed (extra: peers)")

from memory_compressed_attention import MemoryCompressedAttention

from allyouneed.mixers import Role
from allyouneed.mixers.memory_compressed import MemoryCompressedConfig


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
@pytest.mark.parametrize(("stride", "length"), [(3, 3), (3, 24), (4, 20), (1, 5)])
def test_memory_compressed(stride: int, length: int, role: Role) -> None:
    """Forward, and the gradients of the input, the convolution and the null slot.

    Where definitions coincide: for multiples of the stride (theirs fills up the front, ours the end), with one
    convolution for keys and values, no bias on them, and queries smaller by sqrt(heads): theirs divides by sqrt(D).
    """
    width, heads = 24, 3
    ours = MemoryCompressedConfig(heads=heads, stride=stride).build(width, role=role).double()
    theirs = MemoryCompressedAttention(width, heads, role == "causal", compression_factor=stride).double()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.4)
        packed = ours.project.query_key_value
        packed.weight.copy_(theirs.to_qkv.weight)
        packed.weight[:width] /= math.sqrt(heads)
        packed.bias.zero_()
        ours.project.output.load_state_dict(theirs.to_out.state_dict())
        ours.null_N.copy_(torch.cat([theirs.null_k, theirs.null_v]).flatten())
        convolution = theirs.compress_fn.conv
        kernel = convolution.weight.unflatten(0, (heads, -1)).permute(0, 3, 2, 1).flatten(1, 2)  # (H, stride K, K)
        ours.along_NPK.copy_(kernel.repeat(2, 1, 1))
        ours.bias_N1K.copy_(convolution.bias.view(heads, 1, -1).repeat(2, 1, 1))
    x_BTD = torch.randn(2, length, width, dtype=torch.float64, requires_grad=True)
    our_y_BTD, their_y_BTD = ours(x_BTD)[0], theirs(x_BTD)
    torch.testing.assert_close(our_y_BTD, their_y_BTD)
    noise_BTD = torch.randn_like(our_y_BTD)
    ours_by = torch.autograd.grad(our_y_BTD, [x_BTD, ours.along_NPK, ours.bias_N1K, ours.null_N], noise_BTD)
    their_sources = [x_BTD, convolution.weight, convolution.bias, theirs.null_k, theirs.null_v]
    by_x, by_kernel, by_bias, *by_null = torch.autograd.grad(their_y_BTD, their_sources, noise_BTD)
    by_kernel = by_kernel.unflatten(0, (heads, -1)).permute(0, 3, 2, 1).flatten(1, 2)
    torch.testing.assert_close(ours_by[0], by_x)
    torch.testing.assert_close(ours_by[1].unflatten(0, (2, heads)).sum(dim=0), by_kernel)
    torch.testing.assert_close(ours_by[2].unflatten(0, (2, heads)).sum(dim=0), by_bias.view(heads, 1, -1))
    torch.testing.assert_close(ours_by[3], torch.cat(by_null).flatten())
