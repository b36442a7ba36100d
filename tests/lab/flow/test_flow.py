"""Gradients against distance: curves with known answers, layers with known reach, whole models."""

import math
from pathlib import Path

import pytest
import torch

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.lab.flow.gradients import flow_of, gradient_by_distance, model_gradient_by_distance
from allyouneed.lab.flow.study import (
    FlowSettings,
    flow_chart,
    flow_table,
    recipe,
    study_folders,
    study_layers,
    study_models,
    train_models,
    verdicts,
    write_flow_report,
)
from allyouneed.mixers import MIXERS
from allyouneed.mixers.convolution import ConvolutionConfig
from allyouneed.models import Model
from allyouneed.tasks import Batch, TaskData
from allyouneed.training import Recipe


@pytest.mark.no_shapes
@pytest.mark.parametrize(
    ("rate", "kind"), [(0.9, "vanishing"), (1.2, "exploding"), (1.0, "constant"), (0.99, "constant")]
)
def test_curves_are_classified(rate: float, kind: str) -> None:
    flow = flow_of("one", [(distance, 3 * rate**distance) for distance in range(50)])
    assert math.isclose(flow.rate, rate, rel_tol=1e-9)
    assert flow.kind == kind
    assert flow.cut is None


@pytest.mark.no_shapes
def test_reach_and_cut() -> None:
    flow = flow_of("one", [(distance, 1.0 if distance < 20 else 0.0) for distance in range(100)])
    assert flow.cut == 19
    assert flow.reach == 18  # 19 of 20 equal norms are 95 %
    assert "zero beyond 19" in flow.description()
    assert "halves every 6.6" in flow_of("two", [(distance, 0.9**distance) for distance in range(50)]).description()


def test_the_gradient_of_a_layer_matches_its_equation() -> None:
    """y_t = b + sum W_j x_(t-j): the gradient j steps back is u W_j, so its mean square is that of W_j's entries."""
    points = gradient_by_distance(ConvolutionConfig(kernel=3), 12, 64, draws=40)
    assert [norm > 0 for _, norm in points] == [True] * 3 + [False] * 9
    expected = math.sqrt(2 / (3 * 64 + 64) * 64)  # Glorot: variance 2 / (inputs + outputs), 64 entries
    for _, norm in points[:3]:
        assert math.isclose(norm, expected, rel_tol=0.1)


def test_recurrences_forget_and_attention_does_not() -> None:
    found = {
        name: flow_of(name, gradient_by_distance(MIXERS[name].model_validate({}), 80, 32, draws=3))
        for name in ("rnn", "lstm", "softmax")
    }
    assert (found["rnn"].kind, found["lstm"].kind, found["softmax"].kind) == ("vanishing", "vanishing", "constant")
    assert found["rnn"].rate < found["lstm"].rate < found["softmax"].rate
    assert found["rnn"].reach < found["lstm"].reach < found["softmax"].reach


def prepared(name: str, folder: Path) -> tuple[Model, TaskData]:
    one = recipe(name, FlowSettings(mixers=(name,), width=16, symbols=6))
    data = one.task.prepare(folder, 1)
    return one.model.build(data.sizes), data


def test_the_gradient_of_a_model_ends_with_its_receptive_field(tmp_path: Path) -> None:
    settings = FlowSettings(mixers=("convolution",), width=16, symbols=12)
    tree = recipe("convolution", settings).model_dump()
    tree["model"]["mixer"] = {"type": "convolution", "kernel": 3}
    one = parse(Recipe, tree)
    data = one.task.prepare(tmp_path, 1)
    points = model_gradient_by_distance(one.model.build(data.sizes), data.held_out("valid"), texts=2)
    # Two layers of kernel 3 see 4 positions back. 13 tokens (with the end) are given, and 13 are written after a begin.
    assert [distance for distance, norm in points if norm > 0] == list(range(5))
    assert points[-1][0] == 25


def test_a_decoder_sees_its_source(tmp_path: Path) -> None:
    model, data = prepared("softmax", tmp_path)
    points = model_gradient_by_distance(model, data.held_out("valid"), texts=3)
    assert [distance for distance, _ in points] == list(range(14))
    assert all(norm > 0 for _, norm in points)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_gradient_of_a_model_matches_finite_differences(tmp_path: Path) -> None:
    """Compare the gradient with finite differences, for a token that occurs once."""
    model, _ = prepared("gru", tmp_path)
    model.double().eval()
    source_BS, input_BT = torch.tensor([[4, 5, 6, 7]]), torch.tensor([[1, 8, 9]])
    batch = Batch(source_BS=source_BS, input_BT=input_BT, output_BT=torch.tensor([[8, 9, 2]]))
    points = dict(model_gradient_by_distance(model, [batch], probes=1, seed=3))
    torch.manual_seed(3)
    direction_D = torch.nn.functional.normalize(torch.randn(16, dtype=torch.float64), dim=0)
    table_VD, moved = model.head.weight_VD, []
    with torch.no_grad():
        for place in range(16):
            ends = []
            for step in (1e-6, -1e-6):
                table_VD[5, place] += step
                hidden_BTD, _ = model.hidden(input_BT, model.condition(source_BS))
                ends.append(hidden_BTD[0, -1] @ direction_D)
                table_VD[5, place] -= step
            moved.append((ends[0] - ends[1]) / 2e-6)
    assert math.isclose(points[5], float(torch.stack(moved).norm()), rel_tol=1e-5)


@pytest.mark.no_shapes
def test_a_whole_study(tmp_path: Path) -> None:
    settings = FlowSettings(mixers=("rnn", "softmax"), length=40, width=16, draws=2, symbols=4, steps=4)
    study = study_models(study_layers(settings), train_models(settings, tmp_path), tmp_path, settings.seed)
    assert [flow.name for flow in study.after] == ["rnn", "softmax"]
    assert set(study.scores) == {"rnn", "softmax"}
    assert study.after != study.before
    again = study_folders([str(tmp_path / "runs" / "rnn")])
    assert again.after[0].points == study.after[0].points
    page = write_flow_report(study, tmp_path / "report", "allyouneed flow")
    assert page.exists()
    assert (tmp_path / "report" / "flow-3.png").exists()
    assert len(flow_table(study.layers).rows) == 2
    assert len(flow_chart("x", study.layers).curves) == 2
    assert "rnn vanishing" in verdicts(study)[0]


@pytest.mark.no_shapes
def test_unsupported_mixers_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'softmax'"):
        FlowSettings(mixers=("sofmax",))
    with pytest.raises(ConfigError, match="not causal"):
        FlowSettings(mixers=("linformer",))
