"""Fixed patterns (BigBird, sparse factors) at lengths that the contract's loops do not reach, and what they cost."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.mixers import Role
from allyouneed.mixers.base import send_maps_to
from allyouneed.mixers.bigbird import BigBirdConfig, draw
from allyouneed.mixers.parts import patterned
from allyouneed.mixers.parts.block_sparse import area, attend_sparsely, attend_unfused, visible_of
from allyouneed.mixers.parts.patterned import PatternedConfig
from allyouneed.mixers.sparse import SparseConfig
from allyouneed.positions import POSITIONS
from helpers import assert_same_gradients

HEADS = 3
birds = st.builds(
    lambda block, first, random, seed: BigBirdConfig(
        heads=HEADS, block=block, globals=first, random=random, seed=seed if random else 0
    ),
    st.integers(1, 20),
    st.integers(1, 3),
    st.integers(0, 4),
    st.integers(0, 2**40),
)
strided = st.builds(lambda stride: SparseConfig(heads=HEADS, pattern="strided", stride=stride), st.integers(1, 40))
fixed = st.integers(1, 40).flatmap(
    lambda stride: st.builds(
        lambda kept: SparseConfig(heads=HEADS, pattern="fixed", stride=stride, summaries=kept), st.integers(1, stride)
    )
)
configs = birds | strided | fixed
roles = st.sampled_from(["causal", "bidirectional"])


def wanted(config: PatternedConfig, role: Role, T: int, S: int) -> Tensor:
    """Return which position reads which, (H, T, S), from the papers' sets."""
    t, s = torch.arange(S - T, S)[:, None], torch.arange(S)
    if isinstance(config, BigBirdConfig):
        seen_HTS = _bird(config, role, S)[:, S - T :]
    elif isinstance(config, SparseConfig) and config.pattern == "strided":
        seen_HTS = (((t - s).abs() < config.stride) | ((t - s) % config.stride == 0)).expand(HEADS, -1, -1)
    else:
        assert isinstance(config, SparseConfig)
        same, kept = t // config.stride == s // config.stride, s % config.stride >= config.stride - config.kept
        seen_HTS = (same | kept).expand(HEADS, -1, -1)
    return seen_HTS & (s <= t) if role == "causal" else seen_HTS


def _bird(config: BigBirdConfig, role: Role, S: int) -> Tensor:
    blocks, last = -(-S // config.block), (S - 1) // config.block
    reads = torch.zeros(HEADS, blocks, blocks, dtype=torch.bool)
    reads[:, :, : config.globals] = True
    if role == "bidirectional":
        reads[:, : config.globals] = reads[:, last] = reads[:, :, last] = True
    for i in range(blocks):
        reads[:, i, max(0, i - 1) : i + 2] = True
        stop = i if role == "causal" else last
        others = [j for j in range(config.globals, stop) if abs(i - j) > 1]
        if role == "causal" or config.globals <= i < last:
            for head, numbers in enumerate(draw(config, i, len(others)).tolist()):
                reads[head, i, [others[number] for number in numbers]] = True
    return reads.repeat_interleave(config.block, 1).repeat_interleave(config.block, 2)[:, :S, :S]


@settings(max_examples=100)
@given(config=configs, role=roles, T=st.integers(1, 12) | st.integers(1, 160), before=st.integers(0, 120))
def test_a_pattern_is_dense_attention_with_its_mask(config: PatternedConfig, role: Role, T: int, before: int) -> None:
    """Forward and gradient, in both forms, for any length and any past."""
    S = T if role == "bidirectional" else T + before
    q_BHTK = torch.randn(2, HEADS, T, 4, dtype=torch.float64, requires_grad=True)
    k_BHSK, v_BHSK = (torch.randn(2, HEADS, S, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    bands, visible = config.bands(role, T, S), wanted(config, role, T, S)
    assert torch.equal(visible_of(bands, T, S).expand(HEADS, -1, -1), visible)
    inputs = q_BHTK, k_BHSK, v_BHSK
    dense_BHTK = F.scaled_dot_product_attention(*inputs, attn_mask=visible)
    assert_same_gradients(attend_sparsely(*inputs, bands), dense_BHTK, inputs)
    assert_same_gradients(attend_unfused(*inputs, bands), dense_BHTK, inputs)


@given(config=birds, length=st.integers(1, 300), longer=st.integers(1, 300))
def test_a_longer_text_changes_nothing_of_what_its_beginning_reads(
    config: BigBirdConfig, length: int, longer: int
) -> None:
    short, long = (
        visible_of(config.bands("causal", n, n), n, n).expand(HEADS, -1, -1) for n in (length, length + longer)
    )
    assert torch.equal(long[:, :length, :length], short)
    assert not long[:, :length, length:].any()


@pytest.mark.parametrize(
    "config",
    [
        BigBirdConfig(heads=2, block=4, random=2),
        SparseConfig(heads=2, pattern="strided", stride=5),
        SparseConfig(heads=2, pattern="fixed", stride=5, summaries=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("role", ["causal", "bidirectional"])
@pytest.mark.parametrize("position", ["none", "t5", "rotary"])
def test_short_sequences_are_read_as_long_ones(
    monkeypatch: pytest.MonkeyPatch, config: PatternedConfig, role: Role, position: str
) -> None:
    """By one masked call or by bands: whole, padded and in pieces, forward and gradient."""
    scheme = config.build_position(POSITIONS[position].model_validate({}), 12, role)
    mixer = config.build(12, role=role, position=scheme).double()
    x_BTD = torch.randn(2, 41, 12, dtype=torch.float64, requires_grad=True)
    mask_BT = torch.rand(2, 41) < 0.8
    found = []
    for short in (0, 512):
        monkeypatch.setattr(patterned, "SHORT", short)
        whole_BTD, _ = mixer(x_BTD)
        outputs = [whole_BTD, mixer(x_BTD, mask_BT=mask_BT)[0]]
        if role == "causal":
            _, state = mixer(x_BTD[:, :17], mask_BT=mask_BT[:, :17])
            rest_BTD, state = mixer(x_BTD[:, 17:30], state=state)
            outputs += [rest_BTD, mixer(x_BTD[:, 30:], mask_BT=mask_BT[:, 30:], state=state)[0]]
        found.append(torch.cat(outputs, dim=1))
    assert_same_gradients(found[0], found[1], [x_BTD, *mixer.parameters()])


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
def test_bigbird_reads_the_same_in_training_and_evaluation(role: Role) -> None:
    mixer = BigBirdConfig(heads=2, block=4).build(8, role=role)
    x_BTD = torch.randn(1, 70, 8)
    with torch.no_grad():
        trained_BTD, evaluated_BTD = mixer.train()(x_BTD)[0], mixer.eval()(x_BTD)[0]
    assert torch.equal(trained_BTD, evaluated_BTD)


def test_the_draw_is_uniform_and_without_repetition() -> None:
    config = BigBirdConfig(heads=4, random=3)
    counts: Counter[int] = Counter()
    for block in range(2000):
        for numbers in draw(config, block, 7).tolist():
            assert len(set(numbers)) == 3
            counts.update(numbers)
    assert set(counts) == set(range(7))
    share = 4 * 2000 * 3 / 7
    assert all(abs(count - share) < 5 * share**0.5 for count in counts.values())


def test_the_draw_differs_by_seed_head_and_block_and_is_what_it_always_was() -> None:
    """Checkpoints were trained with it, so the numbers are kept here."""
    drawn = {
        (seed, block): draw(BigBirdConfig(heads=4, seed=seed), block, 1000) for seed in (0, 1) for block in (9, 10)
    }
    everything = torch.stack(list(drawn.values())).flatten()
    assert len(everything.unique()) > 0.9 * len(everything)
    assert drawn[0, 9][:2].tolist() == [[886, 989, 954], [405, 624, 47]]


def test_few_choices_are_all_drawn() -> None:
    config = BigBirdConfig(heads=5, random=3)
    assert draw(config, 4, 0).shape == (5, 0)
    assert draw(config, 4, 2).sort(dim=1).values.tolist() == [[0, 1]] * 5


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
def test_the_area_grows_as_the_papers_say(role: Role) -> None:
    """BigBird: with the length. Sparse, with a stride of its square root: with n sqrt(n)."""
    bird = BigBirdConfig(heads=1, block=64)
    small, large = (area(bird.bands(role, n, n)) for n in (4096, 65536))
    assert large < 16.7 * small
    assert large <= 65536 * 64 * (8 if role == "bidirectional" else 6) + 2 * 64 * 65536
    for pattern in ("strided", "fixed"):
        areas = []
        for n in (4096, 65536):
            settings = {"pattern": pattern, "stride": int(n**0.5)} | ({"summaries": 4} if pattern == "fixed" else {})
            areas.append(area(parse(SparseConfig, {"heads": 1, **settings}).bands(role, n, n)))
        assert areas[1] < 70 * areas[0]  # 16 times as long: 64 times the pairs; full attention has 256 times


def test_what_it_reads_can_be_seen() -> None:
    config = BigBirdConfig(heads=2, block=2, random=1)
    mixer, x_BTD = config.build(8), torch.randn(1, 15, 8)
    maps: list[Tensor] = []
    with torch.no_grad(), send_maps_to(lambda _, weights_BHTS: maps.append(weights_BHTS)):
        mixer(x_BTD)
    (weights_BHTS,) = maps
    assert torch.equal(weights_BHTS[0] > 0, visible_of(config.bands("causal", 15, 15), 15, 15))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pattern": "strided", "summaries": 3}, "only the fixed pattern has summaries"),
        ({"pattern": "fixed", "stride": 4, "summaries": 5}, "a block has only 4 positions"),
        ({"pattern": "diagonal"}, "strided"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(SparseConfig, settings)
