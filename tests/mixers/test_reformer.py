"""Hashing: similar positions meet, more rounds miss less, and nothing depends on chunks or on the future."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from allyouneed.errors import ConfigError
from allyouneed.mixers import Role
from allyouneed.mixers.base import send_maps_to
from allyouneed.mixers.parts.buckets import PADDING, Reach, Sorting, attend_in_buckets, attend_unfused, sees
from allyouneed.mixers.reformer import Reformer, ReformerConfig
from helpers import assert_same_gradients

lengths = st.integers(1, 150)
reaches = st.builds(Reach, st.integers(1, 70), st.just(0)) | st.integers(1, 70).map(lambda w: Reach(w, w))


def union_of_windows(bucket_BHRT: Tensor, reach: Reach) -> Tensor:
    """Return which position reads which, from the definition: for each round, go through each bucket in time."""
    B, H, R, T = bucket_BHRT.shape
    visible_BHTS = torch.zeros(B, H, T, T, dtype=torch.bool)
    for b in range(B):
        for h in range(H):
            for r in range(R):
                for number in set(bucket_BHRT[b, h, r].tolist()):
                    members = (bucket_BHRT[b, h, r] == number).nonzero()[:, 0].tolist()
                    for i, t in enumerate(members):
                        around = members[max(0, i - reach.left) : i] + members[i + 1 : i + 1 + reach.right]
                        visible_BHTS[b, h, t, around] = True
            for t in range(T):
                if not visible_BHTS[b, h, t].any():
                    visible_BHTS[b, h, t, t] = True
    return visible_BHTS


@settings(max_examples=40)
@given(
    length=st.integers(1, 150),
    reach=reaches,
    rounds=st.integers(1, 4),
    buckets=st.integers(1, 9),
    at_once=st.booleans(),
)
def test_the_kernel_is_dense_attention_over_the_union_of_windows(
    length: int, reach: Reach, rounds: int, buckets: int, at_once: bool
) -> None:
    """Forward and gradient, by flash calls and plainly, all blocks at once or one by one."""
    bucket_BHRT = torch.randint(PADDING, buckets, (2, 3, rounds, length))
    visible_BHTS = union_of_windows(bucket_BHRT, reach)
    assert torch.equal(sees(bucket_BHRT, reach), visible_BHTS)
    inputs = [torch.randn(2, 3, length, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    wanted = F.scaled_dot_product_attention(*inputs, attn_mask=visible_BHTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("allyouneed.mixers.parts.buckets.AT_ONCE", 2**21 if at_once else 1)
        assert_same_gradients(attend_in_buckets(*inputs, bucket_BHRT, reach), wanted, inputs)
    plain = attend_unfused(torch.cat(inputs, dim=-1), Sorting.of(bucket_BHRT, reach), reach)
    assert_same_gradients(plain, wanted, inputs)


def full_attention(mixer: Reformer, x_BTD: Tensor) -> Tensor:
    """Shared queries and keys, all positions but itself (the first one of a causal mixer reads itself)."""
    heads, T = mixer.config.heads, x_BTD.shape[1]
    q_BHTK, v_BHTK = mixer.query_value(x_BTD).unflatten(2, (2 * heads, -1)).transpose(1, 2).chunk(2, dim=1)
    visible_TS = ~torch.eye(T, dtype=torch.bool)
    if mixer.role == "causal":
        visible_TS = visible_TS.tril()
        visible_TS[0, 0] = True
    k_BHTK = F.normalize(q_BHTK, dim=-1) * q_BHTK.shape[-1] ** 0.5
    y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=visible_TS)
    y_BTD: Tensor = mixer.output(y_BHTK.transpose(1, 2).flatten(2))
    return y_BTD


@pytest.mark.no_shapes
@pytest.mark.parametrize("role", ["causal", "bidirectional"])
def test_more_rounds_come_nearer_to_full_attention(role: Role) -> None:
    """With the same weights and a window that hides nothing, only what never met is missing: less with each round."""
    errors = []
    for rounds in (1, 2, 4, 8, 16, 64):
        error = 0.0
        for seed in range(4):
            torch.manual_seed(seed)
            x_BTD = torch.randn(1, 48, 16, dtype=torch.float64)
            config = ReformerConfig(heads=2, buckets=8, rounds=rounds, chunk=48)
            mixer = config.build(16, role=role).double()
            with torch.no_grad():
                wanted_BTD = full_attention(mixer, x_BTD)
                error += float((mixer(x_BTD)[0] - wanted_BTD).norm() / wanted_BTD.norm()) / 4
        errors.append(error)
    assert all(later < 0.9 * earlier for earlier, later in itertools.pairwise(errors))
    assert errors[-1] < 0.1 * errors[0]


def test_the_most_alike_are_missed_least() -> None:
    """A pair shares a bucket the more likely the smaller its angle, as section 2 needs it."""
    mixer = ReformerConfig(heads=1, buckets=16, rounds=400, chunk=1).build(8, role="bidirectional")
    direction_K, other_K = torch.linalg.qr(torch.randn(8, 2)).Q.T
    angles = [0.0, 0.3, 0.8, 1.5, 3.0]
    q_BHTK = torch.stack(
        [torch.cos(torch.tensor(a)) * direction_K + a**0 * torch.sin(torch.tensor(a)) * other_K for a in angles]
    )
    bucket_TN = mixer._hash(q_BHTK[None, None], None)[0]
    together = (bucket_TN == bucket_TN[:1]).float().mean(dim=1).tolist()
    assert together[0] == 1
    assert together == sorted(together, reverse=True)
    assert together[1] > 0.5
    assert together[-1] < 0.01


def test_the_length_of_a_query_does_not_move_it() -> None:
    mixer = ReformerConfig(heads=2, buckets=8, rounds=3, chunk=4).build(8)
    q_BHTK = torch.randn(1, 2, 30, 4)
    assert torch.equal(mixer._hash(q_BHTK, None), mixer._hash(q_BHTK * 1024, None))


def test_pieces_of_hashing_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    mixer, q_BHTK = ReformerConfig(heads=2, buckets=(4, 6), rounds=3, chunk=4).build(8), torch.randn(3, 2, 31, 4)
    whole = mixer._hash(q_BHTK, None)
    assert int(whole.max()) >= 6  # both factors count
    monkeypatch.setattr("allyouneed.mixers.reformer.AT_ONCE", 1)
    assert torch.equal(mixer._hash(q_BHTK, None), whole)


def test_the_future_does_not_move_the_past_at_length() -> None:
    """Thousands of positions and many blocks: where public implementations leak."""
    mixer = ReformerConfig(heads=2, buckets=16, rounds=3, chunk=20).build(16).double()
    x_BTD = torch.randn(1, 1500, 16, dtype=torch.float64)
    other_BTD = torch.cat([x_BTD[:, :700], torch.randn(1, 431, 16, dtype=torch.float64)], dim=1)
    with torch.no_grad():
        whole_BTD, changed_BTD = mixer(x_BTD)[0], mixer(other_BTD)[0]
        first_BTD, state = mixer(x_BTD[:, :611])
        second_BTD, state = mixer(x_BTD[:, 611:1498], state=state)
        third_BD, state = mixer.advance(x_BTD[:, 1498], state=state)
        fourth_BD, _ = mixer.advance(x_BTD[:, 1499], state=state)
    torch.testing.assert_close(changed_BTD[:, :700], whole_BTD[:, :700], rtol=1e-11, atol=1e-11)
    parts = [first_BTD, second_BTD, third_BD[:, None], fourth_BD[:, None]]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole_BTD, rtol=1e-10, atol=1e-10)


def test_training_reads_what_evaluation_reads_and_a_copy_keeps_its_buckets() -> None:
    config = ReformerConfig(heads=2, buckets=8, rounds=2, chunk=3)
    mixer, copy = config.build(8), config.build(8)
    assert not torch.equal(mixer.rotation_HKM, copy.rotation_HKM)
    copy.load_state_dict(mixer.state_dict())
    x_BTD = torch.randn(2, 40, 8)
    assert torch.equal(mixer.train()(x_BTD)[0], mixer.eval()(x_BTD)[0])
    assert torch.equal(copy(x_BTD)[0], mixer(x_BTD)[0])


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
def test_maps_are_what_is_read(role: Role) -> None:
    mixer = ReformerConfig(heads=2, buckets=4, rounds=2, chunk=3).build(8, role=role).double()
    x_BTD, mask_BT = torch.randn(2, 13, 8, dtype=torch.float64), torch.rand(2, 13) < 0.8
    seen: list[Tensor] = []
    with torch.no_grad(), send_maps_to(lambda _, weights: seen.append(weights)):
        y_BTD, _ = mixer(x_BTD, mask_BT=mask_BT)
        v_BHTK = mixer.query_value(x_BTD)[..., 8:].unflatten(2, (2, 4)).transpose(1, 2)
        again_BTD = mixer.output((seen[0] @ v_BHTK.nan_to_num()).transpose(1, 2).flatten(2))
    torch.testing.assert_close(again_BTD[mask_BT], y_BTD[mask_BT])


def test_nothing_grows_with_the_square_of_the_length() -> None:
    """Declared pairs per position are the same at any length, and so are counted ones."""
    config = ReformerConfig(heads=1, buckets=8, rounds=2, chunk=16)
    flops = {n: config.cost(n, 8).flops for n in (1024, 65536)}
    assert flops[65536] == 64 * flops[1024]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        config.build(8)(torch.randn(1, 1024, 8))
    assert counter.get_total_flops() <= flops[1024]


def test_an_odd_number_of_buckets_is_a_clear_error() -> None:
    with pytest.raises((ConfigError, ValueError), match="multiple of 2"):
        ReformerConfig(buckets=7)
