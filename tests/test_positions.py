"""Positions: each scheme against its equation, and its defining property. (Scores by loops: tests/contracts.)"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from allyouneed.config import parse
from allyouneed.errors import ConfigError, DataError
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.decoder import Decoder, DecoderConfig
from allyouneed.models.encoder import EncoderConfig
from allyouneed.positions import (
    POSITIONS,
    Alibi,
    LearnedConfig,
    Rotary,
    RotaryConfig,
    Sinusoidal,
    T5Bias,
    rotated_first,
)
from allyouneed.sizes import Sizes

WIDTH = 12


def decoder(positions: str, **settings: object) -> Decoder:
    config = parse(
        DecoderConfig,
        {
            "width": WIDTH,
            "mixer": {"type": "softmax", "heads": 3},
            "positions": {"type": positions, **settings},
            "hidden": 20,
            "layers": 2,
            "dropout": 0.0,
        },
    )
    model = config.build(Sizes(source=0, target=11)).double()
    for parameter in model.parameters():  # T5's biases are initialised to zero, which would hide errors
        torch.nn.init.normal_(parameter, std=0.4)
    return model


@pytest.mark.parametrize("width", [1, 2, 7, 12])
def test_sinusoidal_is_the_formula(width: int) -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos of the same angle; odd widths end with a sine."""
    places = [0, 1, 2, 63, 64, 500, 9_999]
    ours = Sinusoidal(width)(torch.tensor(places))
    for row, place in enumerate(places):
        for i in range(width):
            angle = place / 10000 ** (2 * (i // 2) / width)
            expected = math.sin(angle) if i % 2 == 0 else math.cos(angle)
            assert float(ours[row, i]) == pytest.approx(expected, abs=1e-6)


def test_sinusoidal_in_float64_is_exact() -> None:
    ours = Sinusoidal(4).double()(torch.tensor([[3, 70_001]]))
    assert ours.dtype == torch.float64
    assert float(ours[0, 1, 0]) == pytest.approx(math.sin(70_001), abs=1e-9)


@given(first=st.integers(0, 100), length=st.integers(1, 20))
def test_sinusoidal_rows_do_not_depend_on_the_table(first: int, length: int) -> None:
    """The table grows with the longest position seen; existing rows do not change."""
    grown, place_T = Sinusoidal(6), torch.arange(first, first + length)
    grown(torch.tensor([1]))
    assert torch.equal(grown(place_T), Sinusoidal(6)(place_T))


def test_learned_positions_are_rows_of_a_table() -> None:
    table = LearnedConfig(max_length=9).build_added(WIDTH)
    place_BT = torch.tensor([[0, 8], [3, 3]])
    assert torch.equal(table(place_BT), table.table_ND[place_BT])


def test_a_sequence_beyond_the_learned_table_is_a_clear_error() -> None:
    model = decoder("learned", max_length=5)
    _, state = model.step(torch.zeros(1, 5, dtype=torch.long), model.start())
    message = "a sequence of 6 tokens, but learned positions end at 5; .*max_length"
    with pytest.raises(DataError, match=message):
        model.step(torch.zeros(1, 6, dtype=torch.long), model.start())
    with pytest.raises(DataError, match=message):
        model.step(torch.zeros(1, 1, dtype=torch.long), state)


@pytest.mark.parametrize("positions", POSITIONS)
def test_offsets_come_from_the_state(positions: str) -> None:
    """Token by token, with rows that start at different positions, equals each row alone and whole."""
    model, tokens_BT = decoder(positions), torch.randint(11, (2, 9))
    mask_BT = torch.ones(2, 4, dtype=torch.bool)
    mask_BT[1, :2] = False  # the second row is shorter: padded on the left
    with torch.no_grad():
        _, state = model.step(tokens_BT[:, :4], model.start(), mask_BT)
        steps = []
        for t in range(4, 9):
            logits_BTV, state = model.step(tokens_BT[:, t : t + 1], state)
            steps.append(logits_BTV)
        rows = [model.step(row, model.start())[0][:, -5:] for row in (tokens_BT[:1], tokens_BT[1:, 2:])]
    torch.testing.assert_close(torch.cat(steps, dim=1), torch.cat(rows), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("positions", [name for name in POSITIONS if name != "none"])
def test_word_order_matters_only_with_positions(positions: str) -> None:
    """`the cat chased the dog`: without positions, an encoder gives a permuted text the permuted vectors."""
    cat_chases = torch.tensor([[0, 1, 2, 0, 3]])  # the cat chased the dog
    dog_chases = torch.tensor([[0, 3, 2, 0, 1]])  # the dog chased the cat
    order = [0, 4, 2, 3, 1]

    def vectors(name: str, tokens_BS: Tensor) -> Tensor:
        torch.manual_seed(1)
        settings = {"width": WIDTH, "mixer": SoftmaxConfig(heads=3), "positions": name, "hidden": 20, "layers": 2}
        model = parse(EncoderConfig, settings).build(Sizes(source=4, target=2)).double().eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
        return model.encode(tokens_BS).x_BSD

    torch.testing.assert_close(vectors("none", cat_chases)[:, order], vectors("none", dog_chases))
    assert not torch.allclose(vectors(positions, cat_chases)[:, order], vectors(positions, dog_chases), atol=1e-3)


@given(offset=st.integers(0, 5000), t=st.integers(0, 50), s=st.integers(0, 50))
def test_rotary_scores_depend_on_differences_only(offset: int, t: int, s: int) -> None:
    rotary = Rotary(8, 10000.0)
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).unbind(0)

    def score(here: int, there: int) -> Tensor:
        turned = rotary.rotate(q, torch.tensor([here])), rotary.rotate(k, torch.tensor([there]))
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score(t, s), score(t + offset, s + offset), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(rotary.rotate(q, torch.tensor([offset])).norm(), q.norm())


def test_only_some_pairs_are_rotated() -> None:
    """The first features of a head there (Black et al. 2022, section 2.1.1) are the first pairs here."""
    q = torch.randn(1, 1, 5, 10, dtype=torch.float64)
    place = torch.arange(3, 8)
    order = rotated_first(10, pairs=2)
    turned = Rotary(10, 500.0, pairs=2).rotate(q, place)[..., order]
    torch.testing.assert_close(turned[..., :4], Rotary(4, 500.0).rotate(q[..., order[:4]], place))
    assert torch.equal(turned[..., 4:], q[..., order[4:]])
    with pytest.raises(ConfigError, match=r"positions.pairs 6: a head of width 10 has 5 pairs"):
        Rotary(10, 500.0, pairs=6)


def test_rotary_of_odd_head_width_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="head width 3 is odd"):
        RotaryConfig().build_score(4, 3, causal=True)


def test_alibi_slopes_are_those_of_the_paper() -> None:
    """For 8 heads: 1/2, 1/4 .. 1/256."""
    one_apart = Alibi(8).bias(torch.zeros(1, 8, 1, 2), torch.tensor([1]), torch.tensor([0]))
    assert one_apart.flatten().tolist() == [-(2.0**-h) for h in range(1, 9)]


@pytest.mark.parametrize("buckets", [4, 8, 32])
def test_t5_buckets_fill_their_range(buckets: int) -> None:
    distance = torch.arange(-300, 301)
    assert set(T5Bias(1, buckets, 128, True).bucket(distance).tolist()) == set(range(buckets))
    # As in T5, the bucket for a forward distance of zero is never used.
    both = set(T5Bias(1, buckets, 128, False).bucket(distance).tolist())
    assert both == set(range(buckets)) - {buckets // 2}


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "learned", "max_length": 0},
        {"type": "shaw", "clip": -1},
        {"type": "t5", "buckets": 2},
        {"type": "t5", "buckets": 33},
        {"type": "t5", "buckets": 32, "max_distance": 16},
        {"type": "t5", "buckets": 512},
        {"type": "rotary", "base": 0.0},
        {"type": "rotary", "base": -5.0},
    ],
    ids=str,
)
def test_impossible_settings_are_clear_errors(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="positions"):
        parse(DecoderConfig, {"positions": settings})
