"""The long-sequence family against public implementations with the same weights."""

import os
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("transformers", reason="transformers is not installed (extra: bench)")

from transformers import BigBirdConfig as TheirBigBirdConfig
from transformers import LongformerConfig as TheirConfig
from transformers import ReformerConfig as TheirReformerConfig
from transformers import XLNetConfig, XLNetModel
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from allyouneed.mixers import Role, bigbird
from allyouneed.mixers.bigbird import BigBirdConfig
from allyouneed.mixers.longformer import LongformerConfig
from allyouneed.mixers.parts import patterned
from allyouneed.mixers.reformer import ReformerConfig
from allyouneed.mixers.xl import XLConfig
from helpers import assert_same_gradients


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


@pytest.mark.parametrize(("block", "blocks", "random"), [(4, 12, 3), (3, 9, 1), (2, 13, 2), (16, 16, 3)])
def test_bigbird(monkeypatch: pytest.MonkeyPatch, block: int, blocks: int, random: int) -> None:
    """With the random blocks that theirs draws in training (in evaluation it reads block 0 instead)."""
    width, heads, length = 24, 3, block * blocks
    ours = BigBirdConfig(heads=heads, block=block, random=random).build(width, role="bidirectional").double()
    settings = TheirBigBirdConfig(
        hidden_size=width,
        num_attention_heads=heads,
        block_size=block,
        num_random_blocks=random,
        max_position_embeddings=length,
    )
    theirs = BigBirdBlockSparseAttention(settings, seed=5).double().train()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(std=0.4)
        stored = ours.project.query_key_value
        weights, biases = stored.weight.split(width), stored.bias.split(width)
        for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            getattr(theirs, name).weight.copy_(weight)
            getattr(theirs, name).bias.copy_(bias)
    drawn = their_draw(monkeypatch, theirs)
    x_BTD = torch.randn(2, length, width, dtype=torch.float64, requires_grad=True)
    ones = torch.ones(2, blocks, block, dtype=torch.float64)
    y_BTD = theirs(
        x_BTD,
        band_mask=torch.ones(2, 1, blocks - 4, block, 3 * block, dtype=torch.float64),
        from_mask=torch.ones(2, 1, length, 1, dtype=torch.float64),
        to_mask=torch.ones(2, 1, 1, length, dtype=torch.float64),
        from_blocked_mask=ones,
        to_blocked_mask=ones,
    )[0]

    def same(config: BigBirdConfig, i: int, choices: int) -> Tensor:
        """Their blocks as numbers among the blocks that may be drawn."""
        others = [j for j in range(1, blocks - 1) if abs(i - j) > 1]
        assert len(others) == choices
        return torch.tensor([[others.index(j) for j in drawn[head][i - 1]] for head in range(heads)])

    monkeypatch.setattr(bigbird, "draw", same)
    monkeypatch.setattr(patterned, "SHORT", 0)  # the kernel of long sequences
    bigbird._bands.cache_clear()
    our_y_BTD, their_y_BTD = ours(x_BTD)[0], ours.project.output(y_BTD)
    bigbird._bands.cache_clear()
    torch.testing.assert_close(our_y_BTD, their_y_BTD)
    noise_BTD = torch.randn_like(our_y_BTD)
    torch.testing.assert_close(*(torch.autograd.grad(y, x_BTD, noise_BTD)[0] for y in (our_y_BTD, their_y_BTD)))


def their_draw(monkeypatch: pytest.MonkeyPatch, theirs: BigBirdBlockSparseAttention) -> list[list[list[int]]]:
    """For each head and inner block the blocks that it will have drawn."""
    drawn: list[list[list[int]]] = []
    original = theirs._bigbird_block_rand_mask_with_head

    def watched(*settings: Any, **named: Any) -> Any:
        found = original(*settings, **named)
        drawn.extend(head.tolist() for head in found)
        return found

    monkeypatch.setattr(theirs, "_bigbird_block_rand_mask_with_head", watched)
    return drawn


@pytest.mark.parametrize(("memory", "old", "new"), [(20, 7, 5), (3, 7, 5), (5, 0, 9), (6, 6, 1)])
def test_xl(memory: int, old: int, new: int) -> None:
    """Transformer-XL's attention as XLNet keeps it, with its shift and its mems; forward and all gradients."""
    width, heads = 24, 3
    settings = XLNetConfig(vocab_size=5, d_model=width, n_head=heads, n_layer=1, d_inner=8, dropout=0.0)
    model = XLNetModel(settings).double().eval()
    theirs = model.layer[0].rel_attn
    ours = XLConfig(heads=heads, memory=memory, bias=False).build(width).double()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(std=0.4)
        query, key, value = ours.project.query_key_value.weight.split(width)
        pairs = [(theirs.q, query), (theirs.k, key), (theirs.v, value), (theirs.r, ours.distances.project.weight)]
        for mine, weight in pairs:
            mine.copy_(weight.T.view_as(mine))
        theirs.o.copy_(ours.project.output.weight.view_as(theirs.o))
        theirs.r_w_bias.copy_(ours.distances.content_D.view(heads, -1))
        theirs.r_r_bias.copy_(ours.distances.place_D.view(heads, -1))
    x_BTD = torch.randn(2, old + new, width, dtype=torch.float64, requires_grad=True)
    our_y_BTD = ours(x_BTD)[0]
    if old:
        _, state = ours(x_BTD[:, :old])
        torch.testing.assert_close(ours(x_BTD[:, old:], state=state)[0], our_y_BTD[:, old:])
    h = x_BTD.transpose(0, 1)
    apart = torch.arange(old, old + new)[:, None] - torch.arange(old + new)
    hidden = ((apart < 0) | (apart > memory)).double()[:, :, None, None]
    r = model.relative_positional_encoding(new, old + new, bsz=2).double()
    their_y = theirs(h[old:], None, hidden, None, r, None, mems=h[:old] if old else None)[0]
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)  # their sines are in float32
    normed = theirs.layer_norm(our_y_BTD[:, old:] + x_BTD[:, old:])
    close(normed, their_y.transpose(0, 1))
    noise = torch.randn_like(normed)
    mine = torch.autograd.grad(normed, [x_BTD, *ours.parameters()], noise, retain_graph=True)
    names = [theirs.q, theirs.k, theirs.v, theirs.o, theirs.r_w_bias, theirs.r_r_bias, theirs.r]
    its_x, *its = torch.autograd.grad(their_y.transpose(0, 1), [x_BTD, *names], noise)
    by_name = dict(zip(["x", *(name for name, _ in ours.named_parameters())], mine, strict=True))
    rows = torch.cat([grad.reshape(width, width).T for grad in its[:3]])
    close(by_name["x"], its_x)
    close(by_name["project.query_key_value.weight"], rows)
    close(by_name["project.output.weight"], its[3].reshape(width, width))
    close(by_name["distances.content_D"], its[4].flatten())
    close(by_name["distances.place_D"], its[5].flatten())
    close(by_name["distances.project.weight"], its[6].reshape(width, width).T)


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
@pytest.mark.parametrize(("length", "their_chunk"), [(7, 8), (16, 8)], ids=["one chunk", "two chunks, hashed"])
def test_reformer_in_one_bucket(role: Role, length: int, their_chunk: int) -> None:
    """Theirs reads chunks of a sorted list, whatever bucket they hold: the two definitions agree where both read all.

    For theirs that is one chunk, or two, each of which also sees the other (through their hashing and sorting); for
    ours one bucket, which is what rotations of zero make, and a window as long as the sequence.
    """
    width = 24
    ours = ReformerConfig(heads=3, buckets=4, rounds=2, chunk=length, bias=False).build(width, role=role).double()
    settings = TheirReformerConfig(
        hidden_size=width,
        num_attention_heads=3,
        attention_head_size=8,
        num_hashes=1,  # the first chunk of a second round would see the last of the first round, not its own other
        num_buckets=2,
        hash_seed=1,
        lsh_attn_chunk_length=their_chunk,
        lsh_num_chunks_before=1,
        lsh_num_chunks_after=0,
        lsh_attention_probs_dropout_prob=0.0,
        is_decoder=role == "causal",
    )
    theirs = LSHSelfAttention(settings).double()
    with torch.no_grad():
        ours.rotation_HKM.zero_()
        for layer, weight in zip((theirs.query_key, theirs.value), ours.query_value.weight.chunk(2), strict=True):
            layer.weight.copy_(weight)
    x_BTD = torch.randn(2, length, width, dtype=torch.float64, requires_grad=True)
    their_y_BTD = ours.output(theirs(x_BTD).hidden_states)
    our_y_BTD = ours(x_BTD)[0]
    assert_same_gradients(our_y_BTD, their_y_BTD, [x_BTD])
    noise_BTD = torch.randn_like(our_y_BTD)
    (our_gradient,) = torch.autograd.grad(our_y_BTD, ours.query_value.weight, noise_BTD)
    their_gradients = torch.autograd.grad(their_y_BTD, [theirs.query_key.weight, theirs.value.weight], noise_BTD)
    torch.testing.assert_close(our_gradient, torch.cat(their_gradients))


@pytest.mark.parametrize("rounds", [1, 3])
def test_causal_reformer_within_buckets(rounds: int) -> None:
    """reformer-pytorch (extra: peers) can keep to buckets and count pairs once, as ours does.

    With two chunks in all, its chunks hide nothing that stands before a position in its bucket; with more they do, so
    only here the definitions agree. Its keys have the length 1 and its scores are divided by sqrt(K): its queries are
    given that factor. Both hash with our buckets.
    """
    package = pytest.importorskip("reformer_pytorch.reformer_pytorch", reason="not installed (extra: peers)")
    width, heads, length = 12, 2, 20
    ours = ReformerConfig(heads=heads, buckets=2, rounds=rounds, chunk=length).build(width).double()
    theirs = package.LSHAttention(
        bucket_size=length // 2,
        n_hashes=rounds,
        causal=True,
        allow_duplicate_attention=False,
        attend_across_buckets=False,
    )
    x_BTD = torch.randn(2, length, width, dtype=torch.float64, requires_grad=True)
    q_BHTK, v_BHTK = ours.query_value(x_BTD).view(2, length, 2 * heads, 6).transpose(1, 2).chunk(2, dim=1)
    matrix_HKM = ours.rotation_HKM

    def hash_vectors(count: int, vectors: Tensor, **_: object) -> Tensor:
        turned = (q_BHTK.detach() @ matrix_HKM).unflatten(-1, (rounds, -1))
        bucket_NTR = torch.cat([turned, -turned], dim=-1).argmax(dim=-1).flatten(0, 1)
        return (bucket_NTR + count * torch.arange(rounds)).mT.flatten(1)

    theirs.hash_vectors = hash_vectors
    y_NTK, _, _ = theirs(q_BHTK.flatten(0, 1) * 6**0.5, v_BHTK.flatten(0, 1))
    their_y_BTD = ours.output(y_NTK.view(2, heads, length, 6).transpose(1, 2).flatten(2))
    our_y_BTD = ours(x_BTD)[0]
    close = partial(
        torch.testing.assert_close, rtol=1e-4, atol=1e-5
    )  # theirs adds 1e-9 to counts, ours 1e-6 to squares
    close(our_y_BTD, their_y_BTD)
    noise_BTD = torch.randn_like(our_y_BTD)
    close(*(torch.autograd.grad(y, x_BTD, noise_BTD, retain_graph=True)[0] for y in (our_y_BTD, their_y_BTD)))
