"""Multi-head attention beyond the contract: the recipe by loops, initial weights, maps, impossible sizes."""

import pytest
import torch
from torch import Tensor, nn

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.mixers import Memory, Role, select_rows
from allyouneed.mixers.base import send_maps_to
from allyouneed.mixers.naive import multi_head_by_loops
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.mixers.window import WindowConfig
from allyouneed.positions import ScorePosition, T5Config


def test_equals_the_recipe_by_loops() -> None:
    """MultiHead(X, X) written head by head in naive.py, without biases."""
    mixer = SoftmaxConfig(heads=3, bias=False).build(12).double()
    x_BTD = torch.randn(1, 5, 12, dtype=torch.float64)
    query, key, value = mixer.query_key_value.weight.chunk(3)
    slow = multi_head_by_loops(
        x_BTD[0], x_BTD[0], query.T, key.T, value.T, mixer.output.weight.T, 3, lambda t, s: s <= t
    )
    torch.testing.assert_close(mixer(x_BTD)[0][0], slow)


@pytest.mark.parametrize("role", ["causal", "bidirectional", "cross"])
def test_each_matrix_starts_as_glorot_wants_it(role: Role) -> None:
    """W^Q, W^K, W^V are stored together, but each has the variance 2 / (in + out) of its own shape."""
    mixer = SoftmaxConfig(heads=4, key_width=8, value_width=32).build(96, role=role)
    if role == "cross":
        matrices = [mixer.query.weight, *torch.split(mixer.key_value.weight, [32, 128])]
    else:
        matrices = list(torch.split(mixer.query_key_value.weight, [32, 32, 128]))
    for matrix in [*matrices, mixer.output.weight]:
        assert float(matrix.detach().std()) == pytest.approx((2 / sum(matrix.shape)) ** 0.5, rel=0.05)
    assert all((p == 0).all() for name, p in mixer.named_parameters() if name.endswith("bias"))


@pytest.mark.parametrize("role", ["causal", "bidirectional", "cross"])
@pytest.mark.parametrize("position", [None, T5Config()])
def test_maps_are_the_weights_and_looking_changes_nothing(role: Role, position: T5Config | None) -> None:
    score = None if position is None or role == "cross" else position.build_score(3, 4, role == "causal")
    mixer = SoftmaxConfig(heads=3).build(12, role=role, position=score).double()
    x_BTD, memory = torch.randn(2, 5, 12).double(), Memory(torch.randn(2, 4, 12).double())
    arguments = {"memory": memory} if role == "cross" else {}
    maps: list[Tensor] = []

    def sink(module: nn.Module, weights_BHTS: Tensor) -> None:
        assert module is mixer
        maps.append(weights_BHTS)

    unseen, _ = mixer(x_BTD, **arguments)
    with send_maps_to(sink):
        seen, _ = mixer(x_BTD, **arguments)
    mixer(x_BTD, **arguments)
    (weights,) = maps
    torch.testing.assert_close(seen, unseen)
    assert weights.shape == (2, 3, 5, 4 if role == "cross" else 5)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3, 5, dtype=torch.float64))
    if role == "causal":
        assert (weights.triu(1) == 0).all()


def test_beams_of_a_sentence_share_one_memory() -> None:
    """Rows that only repeat what they read do not copy it."""
    mixer = SoftmaxConfig(heads=3).build(12, role="cross")
    _, state = mixer(torch.randn(2, 1, 12), memory=Memory(torch.randn(2, 5, 12)))
    beams = select_rows(state, torch.tensor([0, 0, 0, 1, 1, 1]))
    assert beams.k_NHSK.data_ptr() == state.k_NHSK.data_ptr()
    reordered = select_rows(beams, torch.tensor([2, 0, 1, 4, 4, 3]))
    assert reordered.k_NHSK.data_ptr() == state.k_NHSK.data_ptr()
    second = select_rows(reordered, torch.tensor([3, 5, 4]))
    assert second.k_NHSK.shape[0] == 1


def test_a_width_that_heads_do_not_divide_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"model.width 10 is not divisible by mixer.heads 3"):
        SoftmaxConfig(heads=3).build(10)
    with pytest.raises(ConfigError, match=r"model.width 10 is not divisible by mixer.heads 3"):
        SoftmaxConfig(heads=3).build_position(T5Config(), 10, "causal")
    assert SoftmaxConfig(heads=3, key_width=2, value_width=5).build(10)(torch.randn(1, 2, 10))[0].shape == (1, 2, 10)


@pytest.mark.parametrize("settings", [{"heads": 0}, {"heads": -1}, {"key_width": 0}, {"head": 3}, {"heads": "many"}])
def test_impossible_settings_are_clear_errors(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        parse(SoftmaxConfig, settings)


def test_the_default_position_does_nothing() -> None:
    position, x = ScorePosition(), torch.randn(1, 1, 2, 4)
    assert position.rotate(x, torch.arange(2)) is x
    assert position.bias(x, torch.arange(2), torch.arange(2)) is None


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
def test_a_window_is_that_of_window_attention(role: Role) -> None:
    """Both read the same positions; softmax computes all pairs, the mixer `window` only those within reach."""
    wide = SoftmaxConfig(heads=3, window=2).build(12, role=role).double()
    near = WindowConfig(heads=3, window=2).build(12, role=role).double()
    with torch.no_grad():
        for parameter in wide.parameters():
            parameter.normal_(std=0.5)
    near.project.load_state_dict(wide.state_dict())
    x_BTD, mask_BT = torch.randn(2, 9, 12, dtype=torch.float64), torch.ones(2, 9, dtype=torch.bool)
    mask_BT[0, [0, 4, 8]] = False
    for mask in (None, mask_BT):
        torch.testing.assert_close(wide(x_BTD, mask_BT=mask)[0][mask_BT], near(x_BTD, mask_BT=mask)[0][mask_BT])
    if role == "causal":
        right, state, steps = wide(x_BTD)[0], None, []
        for part_BTD in x_BTD.split([2, 3, 1, 1, 1, 1], dim=1):
            y_BTD, state = wide(part_BTD, state=state)
            steps.append(y_BTD)
        torch.testing.assert_close(torch.cat(steps, dim=1), right)


def test_a_window_of_a_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"mixer.window: a mixer that reads a memory reads all of it"):
        SoftmaxConfig(window=3).build(16, role="cross")
