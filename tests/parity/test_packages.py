"""Mixers of the long-sequence family against public packages with the same weights (extra: peers).

Where a package is a module, it computes with views of our weights: gradients of both are then gradients of the same
tensors. Each docstring says where the two definitions coincide.
"""

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from allyouneed.mixers import Memory, Mixer, Role, linear
from allyouneed.mixers.base import send_losses_to
from allyouneed.mixers.compressive import Compressive, CompressiveConfig
from allyouneed.mixers.linformer import LinformerConfig
from allyouneed.mixers.local import LocalConfig
from allyouneed.mixers.memory_compressed import MemoryCompressedConfig
from allyouneed.mixers.parts.projections import Projections
from allyouneed.mixers.performer import PerformerConfig
from allyouneed.mixers.window import WindowConfig
from allyouneed.positions import RotaryConfig
from helpers import assert_same_gradients

WIDTH, HEADS = 24, 3


def peer(module: str) -> Any:
    """A module of a package that need not be installed."""
    return pytest.importorskip(module, reason=f"{module.split('.')[0]} is not installed (extra: peers)")


def scatter(parameters: Iterable[Tensor]) -> None:
    """Weights large enough to matter, each of them."""
    with torch.no_grad():
        for parameter in parameters:
            parameter.normal_(std=0.4)


def named(project: Projections) -> dict[str, Tensor]:
    """Our projections by the names that the packages give them; theirs always have a bias at the end."""
    layers = [project.query, project.key_value] if hasattr(project, "query") else [project.query_key_value]
    found = {"to_out.weight": project.output.weight, "to_out.bias": project.output.bias}
    if project.output.bias is None:
        found["to_out.bias"] = torch.zeros(project.width, dtype=torch.float64)
    for part in ("weight", "bias"):
        if getattr(layers[0], part) is not None:
            parts = torch.cat([getattr(layer, part) for layer in layers]).split(project.width)
            found |= {f"{name}.{part}": x for name, x in zip(("to_q", "to_k", "to_v"), parts, strict=True)}
    return found


def call(module: nn.Module, weights: Mapping[str, Tensor], *inputs: Tensor, **settings: Any) -> Any:
    """A module with these weights instead of its own: all of them."""
    return functional_call(module, dict(weights), inputs, settings, strict=True)


def assert_same_reading(ours: Mixer, theirs: nn.Module, weights: Mapping[str, Tensor], role: Role, length: int) -> None:
    """Of a text that reads itself, or of a shorter one that reads it."""
    x_BTD = torch.randn(2, 7 if role == "cross" else length, WIDTH, dtype=torch.float64, requires_grad=True)
    y_BSD = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True) if role == "cross" else None
    our_y_BTD, _ = ours(x_BTD, memory=None if y_BSD is None else Memory(y_BSD))
    their_y_BTD = call(theirs, weights, x_BTD, context=y_BSD)
    read = [x_BTD] if y_BSD is None else [x_BTD, y_BSD]
    assert_same_gradients(our_y_BTD, their_y_BTD, [*read, *ours.parameters()])


@pytest.mark.parametrize(("share", "heads"), [("heads", HEADS), ("key-value", HEADS), ("none", 1)])
@pytest.mark.parametrize(("role", "length"), [("bidirectional", 13), ("bidirectional", 9), ("cross", 11)])
def test_linformer(role: Role, length: int, share: Any, heads: int) -> None:
    """Also for what is shorter than the projection. Theirs has one E and one F for all heads, and no biases."""
    package = peer("linformer")
    config = LinformerConfig(heads=heads, slots=5, max_length=13, share=share, bias=False)
    ours = config.build(WIDTH, role=role).double()
    scatter(ours.parameters())
    theirs = package.LinformerSelfAttention(WIDTH, seq_len=13, k=5, heads=heads)
    weights = {**named(ours.project), "proj_k": ours.along_NHRS[0, 0].T, "proj_v": ours.along_NHRS[-1, 0].T}
    assert_same_reading(ours, theirs, weights, role, length)


@pytest.mark.filterwarnings("ignore:.*distutils:DeprecationWarning")  # imported by theirs
@pytest.mark.parametrize(("role", "length"), [("bidirectional", 37), ("cross", 11), ("causal", 13), ("causal", 150)])
def test_performer(monkeypatch: pytest.MonkeyPatch, role: Role, length: int) -> None:
    """With the same directions for all heads, and without the epsilons that theirs adds to features and denominators.

    What it subtracts from exponents, the largest of all keys, then cancels, as ours does. With epsilons it would not: a
    key that is far from the largest becomes epsilon, and a large later key already changes the causal form.
    """
    package = peer("performer_pytorch.performer_pytorch")
    monkeypatch.setattr(package, "softmax_kernel", partial(package.softmax_kernel, eps=0.0))
    ours = PerformerConfig(heads=HEADS, features=20).build(WIDTH, role=role).double()
    scatter(ours.parameters())
    ours.direction_HMK.copy_(ours.direction_HMK[:1].clone())
    theirs = package.Attention(
        WIDTH, causal=role == "causal", heads=HEADS, dim_head=WIDTH // HEADS, nb_features=20, qkv_bias=True
    )
    if role == "causal":  # without their extension for CUDA
        theirs.fast_attention.causal_linear_fn = partial(package.causal_linear_attention_noncuda, eps=0.0)
    weights = {**named(ours.project), "fast_attention.projection_matrix": ours.direction_HMK[0]}
    assert_same_reading(ours, theirs, weights, role, length)


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
@pytest.mark.parametrize(("size", "looks", "length"), [(4, 1, 32), (5, 2, 37), (16, 1, 150), (8, 3, 9)])
def test_window(role: Role, size: int, looks: int, length: int) -> None:
    """Their windows with `exact_windowsize` reach as far as ours; the mask hides what fills up their last window."""
    package = peer("local_attention")
    ours = WindowConfig(heads=HEADS, window=size * looks).build(WIDTH, role=role).double()
    scatter(ours.parameters())
    forward = 0 if role == "causal" else looks
    theirs = package.LocalAttention(
        size, role == "causal", look_backward=looks, look_forward=forward, autopad=True, exact_windowsize=True
    )
    x_BTD = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)
    y_BHTK = theirs(*ours.project.queries_keys_values(x_BTD), mask=torch.ones(2, length, dtype=torch.bool))
    assert_same_gradients(ours(x_BTD)[0], ours.project.merge(y_BHTK), [x_BTD, *ours.parameters()])


def test_window_with_rotary_positions() -> None:
    """Causal only: where theirs looks forward, it turns the queries as if they stood at the end of what they read."""
    package = peer("local_attention")
    rotary = RotaryConfig().build_score(HEADS, WIDTH // HEADS, causal=True)
    ours = WindowConfig(heads=HEADS, window=5).build(WIDTH, position=rotary).double()
    scatter(ours.parameters())
    theirs = package.LocalAttention(5, causal=True, autopad=True, exact_windowsize=True, dim=WIDTH // HEADS).double()
    theirs.rel_pos.inv_freq.copy_(rotary.frequency_R)  # theirs are made in float32
    x_BTD = torch.randn(2, 23, WIDTH, dtype=torch.float64, requires_grad=True)
    y_BHTK = theirs(*ours.project.queries_keys_values(x_BTD))
    assert_same_gradients(ours(x_BTD)[0], ours.project.merge(y_BHTK), [x_BTD, *ours.parameters()])


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
@pytest.mark.parametrize(("block", "length"), [(4, 32), (7, 37), (16, 11)])
def test_local(role: Role, block: int, length: int) -> None:
    """Their windows that look neither back nor forward are our blocks."""
    package = peer("local_attention")
    ours = LocalConfig(heads=HEADS, block=block).build(WIDTH, role=role).double()
    scatter(ours.parameters())
    theirs = package.LocalAttention(block, causal=role == "causal", look_backward=0, look_forward=0, autopad=True)
    x_BTD = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)
    y_BHTK = theirs(*ours.project.queries_keys_values(x_BTD), mask=torch.ones(2, length, dtype=torch.bool))
    assert_same_gradients(ours(x_BTD)[0], ours.project.merge(y_BHTK), [x_BTD, *ours.parameters()])


def compressive_weights(ours: Compressive) -> dict[str, Tensor]:
    """Theirs stores keys and values together, and convolves along the last axis."""
    found = named(ours.project)
    found["to_kv.weight"] = torch.cat([found.pop("to_k.weight"), found.pop("to_v.weight")])
    kernel = ours.compress.weight.unflatten(1, (ours.config.rate, WIDTH)).mT
    return {**found, "compress_mem_fn.conv.weight": kernel, "compress_mem_fn.conv.bias": ours.compress.bias}


@pytest.mark.parametrize(("memory", "compressed", "rate"), [(8, 3, 4), (3, 2, 3), (6, 50, 2), (4, 1, 1), (20, 4, 5)])
def test_compressive(memory: int, compressed: int, rate: int) -> None:
    """A whole text by ours, segments of one group each by theirs: then all positions of a segment have the same slots.

    Longer segments differ: theirs keeps for all of them what was there when they began. Theirs has no u and v, and any
    key for a distance: here u = v = 0, and the keys are W_R r. Slots are constants, as its own model makes them.
    """
    package = peer("compressive_transformer_pytorch.compressive_transformer_pytorch")
    config = CompressiveConfig(heads=HEADS, memory=memory, compressed=compressed, rate=rate, bias=False)
    ours = config.build(WIDTH).double()
    trained = [ours.project.query_key_value.weight, ours.project.output.weight, ours.distances.project.weight]
    scatter([*trained, *ours.compress.parameters()])
    # In training theirs severs W^K and W^V from their gradients for good.
    theirs = package.SelfAttention(WIDTH, rate, memory, compressed, rate, HEADS).eval()
    key_HRK = ours.distances.keys(compressed + memory + rate - 1).mT
    x_BTD = torch.randn(2, 12 * rate, WIDTH, dtype=torch.float64, requires_grad=True)
    kept, slots, outputs = None, None, []
    for segment_BTD in x_BTD.split(rate, dim=1):
        memories = kept, None if slots is None else slots.detach()
        y_BTD, (kept, slots), _ = call(
            theirs, compressive_weights(ours), segment_BTD, memories=memories, pos_emb=key_HRK
        )
        outputs.append(y_BTD)
    inputs = [x_BTD, *trained, *ours.compress.parameters()]
    assert_same_gradients(ours(x_BTD)[0], torch.cat(outputs, dim=1), inputs)


@pytest.mark.parametrize("rate", [3, 4])
def test_loss_of_compression(rate: int) -> None:
    """With a memory of one group, for theirs compares slots with all of its memory; theirs is a mean, ours a sum.

    Neither reaches anything but the convolution.
    """
    package = peer("compressive_transformer_pytorch.compressive_transformer_pytorch")
    ours = CompressiveConfig(heads=HEADS, memory=rate, compressed=2, rate=rate, bias=False).build(WIDTH).double()
    scatter(ours.parameters())
    theirs = package.SelfAttention(WIDTH, rate, rate, 2, rate, HEADS).train()
    x_BTD = torch.randn(2, 5 * rate, WIDTH, dtype=torch.float64, requires_grad=True)
    our_losses: list[Tensor] = []
    their_losses, memories, state = [], None, None
    for segment_BTD in x_BTD.split(rate, dim=1):
        with send_losses_to(our_losses.append):
            _, state = ours(segment_BTD, state=state)
        _, memories, loss = call(theirs, compressive_weights(ours), segment_BTD, memories=memories)
        their_losses.append(loss.sum() * 2 * rate)
    assert len(our_losses) == 4  # the first segment finds nothing to compress
    inputs = [x_BTD, *ours.parameters()]
    assert_same_gradients(torch.stack(our_losses), torch.stack(their_losses[1:]), inputs)


def test_linear_attention_with_given_features() -> None:
    """Theirs is not the paper's elu + 1: phi(q) is a softmax over features, phi(k) one over positions.

    Hence its sums over keys are 1 without a division, and the functions that read our mixer's features agree with its
    own up to the sqrt(K) that it divides by.
    """
    package = peer("linear_attention_transformer.linear_attention_transformer")
    q_BHTK, k_BHTK, v_BHTK = torch.randn(3, 2, HEADS, 13, 8, dtype=torch.float64, requires_grad=True).unbind()
    sum_BHMR = linear.total(k_BHTK.softmax(dim=2), v_BHTK, None)
    our_y_BHTK = linear.read(q_BHTK.softmax(dim=-1), sum_BHMR)
    their_y_BHTK = package.linear_attn(q_BHTK, k_BHTK, v_BHTK)
    assert_same_gradients(our_y_BHTK, their_y_BHTK * math.sqrt(8), [q_BHTK, k_BHTK, v_BHTK])


@pytest.mark.parametrize("length", [13, 64, 150])
@pytest.mark.parametrize("padded", [False, True])
def test_causal_linear_attention_with_given_features(length: int, padded: bool) -> None:
    """Theirs has the features softmax(q) and exp(k), and with buckets of one position no blind spot."""
    package = peer("linear_attention_transformer.linear_attention_transformer")
    q_BHTK, k_BHTK, v_BHTK = torch.randn(3, 2, HEADS, length, 8, dtype=torch.float64, requires_grad=True).unbind()
    mask_BT = torch.rand(2, length) < 0.7 if padded else None
    our_y_BHTK, _ = linear.read_causally(q_BHTK.softmax(dim=-1), k_BHTK.exp(), v_BHTK, mask_BT, None)
    # It writes into the values it masks.
    their_y_BHTK = package.causal_linear_attn(q_BHTK, k_BHTK, v_BHTK.clone(), kv_mask=mask_BT, bucket_size=1)
    assert_same_gradients(our_y_BHTK, their_y_BHTK, [q_BHTK, k_BHTK, v_BHTK])


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
@pytest.mark.parametrize(("stride", "length"), [(3, 3), (3, 24), (4, 20), (1, 5)])
def test_memory_compressed(stride: int, length: int, role: Role) -> None:
    """Forward, and the gradients of the input, the convolution and the null slot.

    Where definitions coincide: for multiples of the stride (theirs fills up the front, ours the end), with one
    convolution for keys and values, no bias on them, and queries smaller by sqrt(heads): theirs divides by sqrt(D).
    """
    package = peer("memory_compressed_attention")
    width, heads = WIDTH, HEADS
    ours = MemoryCompressedConfig(heads=heads, stride=stride).build(width, role=role).double()
    theirs = package.MemoryCompressedAttention(width, heads, role == "causal", compression_factor=stride).double()
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
