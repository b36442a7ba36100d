"""Path lengths: known results, lengths beyond float64 precision, unreachable positions."""

import pytest
import torch

from allyouneed.lab.cost.path_length import enlarged, path_length
from allyouneed.mixers import MIXERS, MixerConfig
from allyouneed.mixers.convolution import ConvolutionConfig
from allyouneed.mixers.recurrent import RecurrentState

SMALL: dict[str, dict[str, object]] = {
    "window": {"window": 3},
    "longformer": {"window": 2, "everywhere": 1},
    "bigbird": {"block": 2},
    "sparse": {"stride": 4, "summaries": 1},
    "linformer": {"slots": 4, "max_length": 64},
    "local": {"block": 5},
    "reformer": {"buckets": 2, "chunk": 12, "rounds": 2},
    "xl": {"memory": 3},
    "compressive": {"memory": 2, "compressed": 1, "rate": 2},
    "performer": {"features": 8},
    "convolution": {"kernel": 4},
}


def small(name: str) -> MixerConfig:
    heads = {"heads": 2} if "heads" in MIXERS[name].model_fields else {}
    return MIXERS[name].model_validate(heads | SMALL.get(name, {}))


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("length", [2, 23])
def test_the_measured_path_is_the_declared_one(name: str, length: int) -> None:
    config = small(name)
    role = "causal" if "causal" in config.roles else "bidirectional"
    stated = config.cost(length, 8, role=role).path
    assert path_length(config, length, 8, draws=20 if config.reads_by_content else 1) == stated


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru"])
def test_a_recurrence_is_followed_beyond_float64_precision(name: str) -> None:
    config, length = MIXERS[name].model_validate({}), 400
    mixer, x_BTD = config.build(8).double(), torch.randn(1, length, 8, dtype=torch.float64)
    other_BTD = x_BTD.clone()
    other_BTD[:, 0] = 1.0
    with torch.no_grad():
        assert torch.equal(
            mixer(x_BTD)[0][:, -1], mixer(other_BTD)[0][:, -1]
        )  # the difference is below float64 precision
    assert path_length(config, length, 8) == 1


@pytest.mark.parametrize(("length", "layers"), [(3, 1), (9, 2), (10, 3), (27, 3), (28, 4), (81, 4)])
def test_dilated_convolutions_reach_the_power_of_their_kernel(length: int, layers: int) -> None:
    assert path_length(lambda layer: ConvolutionConfig(kernel=3, dilation=3**layer), length, 4) == layers


def test_alternating_layers_reach_further_than_either_alone() -> None:
    local, window = small("local"), MIXERS["window"].model_validate({"heads": 2, "window": 1})
    assert path_length(local, 20, 8) is None
    assert path_length(window, 20, 8) == 19
    assert path_length(lambda layer: (local, window)[layer % 2], 20, 8) == 7  # three borders, a window over each


def test_one_position_has_path_zero() -> None:
    assert path_length(small("softmax"), 1, 8) == 0


def test_rescaling_keeps_equal_states_equal() -> None:
    state = RecurrentState(torch.zeros(1, 3), torch.ones(1, 3))
    other = RecurrentState(torch.tensor([[0.0, 1e-9, -5e-10]]), torch.ones(1, 3))
    found = enlarged(state, other)
    torch.testing.assert_close(found.h_BK, torch.tensor([[0.0, 1.0, -0.5]]))
    assert torch.equal(found.c_BK, torch.ones(1, 3))
