"""A scaling study from end to end on a tiny text: counts, sizes, and a prediction that does not change."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from allyouneed.cli import run as command
from allyouneed.errors import ConfigError
from allyouneed.lab.jobs import outcome_of
from allyouneed.lab.scaling.laws import CHINCHILLA, fit
from allyouneed.lab.scaling.plan import (
    MeasuredSize,
    ScalingPlan,
    Size,
    count_without_tables,
    grid,
    measure,
    read_size,
    read_sizes,
)
from allyouneed.lab.scaling.report import optimum_table, verdicts, write_study
from allyouneed.lab.scaling.study import RunOptions, ScalingStudy, best_exponents, best_sizes, study, verify
from allyouneed.training import train

pytestmark = pytest.mark.no_shapes

RECIPE = """
[task]
type = "language"
train = "{text}"
split = [0.8, 0.2]
context = 16
batch = 4
overlap = 0
[model]
type = "decoder"
layers = 2
width = 32
hidden = 64
mixer = {{ type = "softmax", heads = 2 }}
[train]
optimizer = {{ type = "adamw", lr = 0.01 }}
"""


@pytest.fixture
def plan(tmp_path: Path) -> ScalingPlan:
    words = "to be or not to be, that is the question: whether it is nobler in the mind to suffer. "
    (tmp_path / "text.txt").write_text(words * 30, encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(RECIPE.format(text=tmp_path / "text.txt"), encoding="utf-8")
    return ScalingPlan(str(tmp_path / "recipe.toml"), "8x1,12x1", (5e6, 1e7, 2e7))


def made(plan: ScalingPlan, folder: Path) -> Path:
    """Train the runs of the grid in this process, so that a study finds them finished."""
    recipe = plan.load()
    data = recipe.task.prepare(folder / "data", recipe.seed)
    for item in grid(plan, [measure(plan, size, data) for size in read_sizes(plan)]):
        train(item.job.recipe, folder / "runs" / item.job.name, cores=1)
    return folder


def predicted(found: ScalingStudy, folder: Path) -> ScalingStudy:
    train(found.job.job.recipe, folder / "runs" / found.job.job.name, cores=1)
    return verify(found, folder)


@pytest.mark.slow
def test_a_prediction_precedes_its_run_and_does_not_change(plan: ScalingPlan, tmp_path: Path) -> None:
    folder = made(plan, tmp_path / "out")
    found = study(plan, folder, times=4.0, draws=40)
    file = folder / "prediction.json"
    written, before = json.loads(file.read_text()), file.read_bytes()
    assert not (folder / "runs" / written["prediction"]["run"]).exists()
    assert written["prediction"]["loss"]["low"] < found.prediction.loss.value < written["prediction"]["loss"]["high"]
    assert written["from"] == {run.name: run.loss for run in found.runs}
    assert found.prediction.flops == 4 * max(run.flops for run in found.runs)

    # The grid is extended before the run: the prediction may change.
    larger = made(replace(plan, budgets=(*plan.budgets, 3e7)), folder)
    found = study(replace(plan, budgets=(*plan.budgets, 3e7)), larger, times=4.0, draws=40)
    assert file.read_bytes() != before
    before = file.read_bytes()

    checked = predicted(found, folder)
    assert checked.measured is not None
    assert checked.measured.flops == pytest.approx(checked.prediction.flops, rel=0.02)
    assert checked.error == checked.prediction.loss.value / checked.measured.loss - 1
    page = write_study(checked, folder, "allyouneed scaling")
    assert verdicts(checked)[0] in page.read_text()
    assert json.loads((folder / "report.json").read_text())["measured"]["loss"] == checked.measured.loss
    assert (folder / "compute.png").exists()
    study(replace(plan, budgets=(*plan.budgets, 3e7)), folder, times=4.0, draws=40)
    assert file.read_bytes() == before
    with pytest.raises(ConfigError, match=r"from other runs.*cannot be changed"):
        study(plan, folder, times=4.0, draws=40)
    larger_plan = replace(plan, budgets=(*plan.budgets, 3e7))
    with pytest.raises(
        ConfigError, match=r"was made for 4.0 times the compute, now --predict is 5.*cannot be changed"
    ) as no:
        study(larger_plan, folder, times=5.0, draws=40)
    assert "other runs" not in str(no.value)
    with pytest.raises(ConfigError, match=rf"for size {checked.prediction.size}, now it is 44x1"):
        study(larger_plan, folder, times=4.0, at="44x1", draws=40)
    file.unlink()
    with pytest.raises(ConfigError, match="A prediction must precede its run"):
        study(larger_plan, folder, times=4.0, draws=40)
    assert not file.exists()


@pytest.mark.slow
def test_the_command_prints_tables_and_writes_the_report(
    plan: ScalingPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made(plan, tmp_path / "out")
    arguments = ["scaling", plan.recipe, "--sizes", plan.sizes, "--budgets", "5e6,1e7,2e7", "--lr-power", "0"]
    assert command([*arguments, "--predict", "5", "--at", "16x1", "--out", str(folder)]) == 0
    printed = capsys.readouterr()
    assert "6 of 6 runs kept from before" in printed.err
    assert "8x1-5e6 " in printed.out
    assert "prediction: Size 16x1" in printed.out
    report = json.loads((folder / "report.json").read_text())
    assert report["prediction"]["times"] == 5
    assert report["measured"] is None


@pytest.mark.slow
def test_budgets_in_tokens_give_laws_of_one_variable(plan: ScalingPlan, tmp_path: Path) -> None:
    plan = replace(plan, sizes="8x1,12x1,16x1", budgets=(256.0, 512.0, 1024.0), unit="tokens")
    found = study(plan, made(plan, tmp_path / "out"), draws=40)
    assert {run.tokens for run in found.runs} == {256, 512, 1024}
    assert [name.partition(" ")[0] for name in found.single] == ["L(N)", "L(D)"]
    assert found.iso is None
    write_study(found, tmp_path / "out")


def test_counts_match_the_model_and_its_run(plan: ScalingPlan, tmp_path: Path) -> None:
    recipe = plan.load()
    data = recipe.task.prepare(tmp_path / "data", recipe.seed)
    size = measure(plan, read_size(plan, "8x1"), data)
    whole = plan.load(*size.size.sets, "train.budget.flops=5e6")
    model = whole.model.build(data.sizes)
    tables = 8 * data.sizes.target  # tied: one table for both ends
    assert size.parameters == count_without_tables(model) == model.parameter_count() - tables
    train(whole, tmp_path / "run", cores=1)
    outcome = outcome_of(tmp_path / "run")
    assert outcome is not None
    assert outcome.flops == outcome.tokens * size.flops_per_token
    assert len(outcome.curve) == 1  # one evaluation, at the end


def test_sizes_keep_the_aspect_of_the_recipe(plan: ScalingPlan) -> None:
    by_aspect, given = (read_size(replace(plan, lr_power=0.5), text) for text in ("64", "64x3"))
    assert by_aspect.sets == ("model.width=64", "model.layers=4", "model.hidden=128", "train.optimizer.lr=0.00707107")
    assert given.name == "64x3"
    assert "model.layers=3" in given.sets
    settings = read_size(plan, "model.width=16 model.mixer.heads=4")
    model = plan.load(*settings.sets).model
    assert (model.width, model.mixer.heads) == (16, 4)  # type: ignore[attr-defined]


def test_learning_rates_follow_the_width_in_all_notations(plan: ScalingPlan) -> None:
    plan = replace(plan, lr_power=0.5)
    written = read_size(plan, "model.width=64 model.layers=2").sets
    assert written[2:] == ("train.optimizer.lr=0.00707107",)
    assert read_size(plan, "model.width=64 train.optimizer.lr=0.1").sets[1:] == ("train.optimizer.lr=0.1",)
    assert read_size(plan, "model.layers=3").sets == ("model.layers=3",)


def test_more_seeds_keep_the_runs_of_the_first(plan: ScalingPlan, tmp_path: Path) -> None:
    recipe = plan.load()
    data = recipe.task.prepare(tmp_path / "data", recipe.seed)
    sizes = [measure(plan, size, data) for size in read_sizes(plan)]
    one, two = ({job.job.name: job.job.recipe for job in grid(p, sizes)} for p in (plan, replace(plan, seeds=(1, 2))))
    assert one.items() <= two.items()
    assert set(two) - set(one) == {f"{name}-seed2" for name in one}


@pytest.mark.slow
def test_the_exponents_of_the_law_use_the_cost_of_the_sizes(plan: ScalingPlan, tmp_path: Path) -> None:
    """If a token costs N^g, N* ~ C^(b / (a + g b)) and D* ~ C^(a / (a + g b))."""
    plan = replace(plan, sizes="8x1,12x1,16x1")
    found = study(plan, made(plan, tmp_path / "out"), draws=40)
    n, d = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e3, 1e5, 6), np.geomspace(1e5, 1e7, 6)))
    law = fit(CHINCHILLA, [n, d], 1 + 40 / n**0.4 + 600 / d**0.5, draws=40)
    for g in (1.0, 0.7):
        sizes = [MeasuredSize(Size(str(n), ()), n, 6.0 * n**g) for n in (1000, 3000, 10_000, 40_000)]
        changed = replace(found, sizes=sizes, fits={"Chinchilla": law}, plan=replace(plan, budgets=(1e9, 1e10, 1e11)))
        of_size, of_data = best_exponents(changed)
        assert of_size.value == pytest.approx(0.5 / (0.4 + g * 0.5), abs=0.02)
        assert of_data.value == pytest.approx(0.4 / (0.4 + g * 0.5), abs=0.02)
        assert of_size.low <= of_size.value <= of_size.high
    (row,) = (row for row in optimum_table(found).rows if row[0] == "exponent over C")
    assert row[2:4] == [one.text() for one in best_exponents(found)]


@pytest.mark.slow
def test_the_best_size_grows_with_compute(plan: ScalingPlan, tmp_path: Path) -> None:
    plan = replace(plan, sizes="8x1,12x1,16x1")
    found = study(plan, made(plan, tmp_path / "out"), draws=40)
    sizes, losses, low, high = best_sizes(found, [1e7, 1e8, 1e10])
    assert [size.parameters for size in sizes] == sorted(size.parameters for size in sizes)
    assert (low <= losses).all()
    assert (losses <= high).all()
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize(
    ("change", "times", "words"),
    [
        ({"sizes": "8x1,8x1"}, 4.0, "distinct sizes"),
        ({"sizes": "8 by 1"}, 4.0, "should be a width"),
        ({"budgets": (1e7, 1e7)}, 4.0, "distinct numbers above 0"),
        ({"budgets": (1e7, -1.0)}, 4.0, "distinct numbers above 0"),
        ({"budgets": (1e7, 2e7)}, 4.0, "needs at least 6 runs"),
        ({"sizes": "8x1"}, 4.0, "over 2 sizes and 2 budgets"),
        ({}, 1.0, "should be above 1"),
        ({}, float("nan"), "should be above 1"),
        ({}, float("inf"), "should be above 1"),
        ({"sizes": "8x1,12x0"}, 4.0, "should be a width"),
        ({"budgets": (1e7, float("nan"), 2e7)}, 4.0, "distinct numbers above 0"),
        ({"budgets": (1.001e7, 1.002e7, 2e7)}, 4.0, "two runs would have the name 12x1-1e7"),
    ],
)
def test_impossible_plans_are_refused_before_any_run(
    plan: ScalingPlan, tmp_path: Path, change: dict[str, object], times: float, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        study(replace(plan, **change), tmp_path / "out", times, how=RunOptions())  # type: ignore[arg-type]
    assert not (tmp_path / "out" / "runs").exists()
