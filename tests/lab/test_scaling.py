"""A study of scaling from end to end on a tiny text: counts, sizes, and a prediction that is not changed afterwards."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from allyouneed.cli import run as command
from allyouneed.errors import ConfigError
from allyouneed.lab.runs import outcome_of
from allyouneed.lab.scaling import How, Study, best_sizes, study, verify
from allyouneed.lab.scaling_plan import Plan, count_without_tables, grid, measure, read_size, read_sizes
from allyouneed.lab.scaling_report import verdicts, write_study
from allyouneed.train import train

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
def plan(tmp_path: Path) -> Plan:
    words = "to be or not to be, that is the question: whether it is nobler in the mind to suffer. "
    (tmp_path / "text.txt").write_text(words * 30, encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(RECIPE.format(text=tmp_path / "text.txt"), encoding="utf-8")
    return Plan(str(tmp_path / "recipe.toml"), "8x1,12x1", (5e6, 1e7, 2e7))


def made(plan: Plan, folder: Path) -> Path:
    """The grid's runs, made here instead of in processes of their own: a study finds them finished."""
    recipe = plan.load()
    data = recipe.task.prepare(folder / "data", recipe.seed)
    for item in grid(plan, [measure(plan, size, data) for size in read_sizes(plan)]):
        train(item.job.recipe, folder / "runs" / item.job.name, cores=1)
    return folder


def predicted(found: Study, folder: Path) -> Study:
    train(found.job.job.recipe, folder / "runs" / found.job.job.name, cores=1)
    return verify(found, folder)


def test_a_prediction_comes_before_its_run_and_stays(plan: Plan, tmp_path: Path) -> None:
    folder = made(plan, tmp_path / "out")
    found = study(plan, folder, times=4.0, draws=40)
    file = folder / "prediction.json"
    said, before = json.loads(file.read_text()), file.read_bytes()
    assert not (folder / "runs" / said["prediction"]["run"]).exists()
    assert said["prediction"]["loss"]["low"] < found.prediction.loss.value < said["prediction"]["loss"]["high"]
    assert said["from"] == {run.name: run.loss for run in found.runs}
    assert found.prediction.flops == 4 * max(run.flops for run in found.runs)

    # The grid grows before the run is made: the prediction may change.
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
    with pytest.raises(ConfigError, match="not changed afterwards"):
        study(plan, folder, times=4.0, draws=40)


def test_the_command_prints_tables_and_writes_the_report(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made(plan, tmp_path / "out")
    arguments = ["scaling", plan.recipe, "--sizes", plan.sizes, "--budgets", "5e6,1e7,2e7", "--lr-power", "0"]
    assert command([*arguments, "--predict", "5", "--at", "16x1", "--out", str(folder)]) == 0
    printed = capsys.readouterr()
    assert "6/6  12x1-2e7" in printed.err
    assert "8x1-5e6 " in printed.out
    assert "prediction: Size 16x1" in printed.out
    report = json.loads((folder / "report.json").read_text())
    assert report["prediction"]["times"] == 5
    assert report["measured"] is None


def test_budgets_in_tokens_give_laws_of_one_variable(plan: Plan, tmp_path: Path) -> None:
    plan = replace(plan, sizes="8x1,12x1,16x1", budgets=(256.0, 512.0, 1024.0), unit="tokens")
    found = study(plan, made(plan, tmp_path / "out"), draws=40)
    assert {run.tokens for run in found.runs} == {256, 512, 1024}
    assert [name.partition(" ")[0] for name in found.single] == ["L(N)", "L(D)"]
    assert found.iso is None
    write_study(found, tmp_path / "out")


def test_counts_are_those_of_the_model_and_of_its_run(plan: Plan, tmp_path: Path) -> None:
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


def test_sizes_keep_the_aspect_of_the_recipe(plan: Plan) -> None:
    by_aspect, given = (read_size(replace(plan, lr_power=0.5), text) for text in ("64", "64x3"))
    assert by_aspect.sets == ("model.width=64", "model.layers=4", "model.hidden=128", "train.optimizer.lr=0.00707107")
    assert given.name == "64x3"
    assert "model.layers=3" in given.sets
    settings = read_size(plan, "model.width=16 model.mixer.heads=4")
    model = plan.load(*settings.sets).model
    assert (model.width, model.mixer.heads) == (16, 4)  # type: ignore[attr-defined]


def test_the_best_size_grows_with_compute(plan: Plan, tmp_path: Path) -> None:
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
        ({"sizes": "8x1,8x1"}, 4.0, "different sizes"),
        ({"sizes": "8 by 1"}, 4.0, "should be a width"),
        ({"budgets": (1e7, 1e7)}, 4.0, "different numbers above 0"),
        ({"budgets": (1e7, -1.0)}, 4.0, "different numbers above 0"),
        ({"budgets": (1e7, 2e7)}, 4.0, "needs at least 6 runs"),
        ({"sizes": "8x1"}, 4.0, "over 2 sizes and 2 budgets"),
        ({}, 1.0, "should be above 1"),
    ],
)
def test_plans_that_cannot_work_are_refused_before_anything_runs(
    plan: Plan, tmp_path: Path, change: dict[str, object], times: float, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        study(replace(plan, **change), tmp_path / "out", times, how=How())  # type: ignore[arg-type]
    assert not (tmp_path / "out" / "runs").exists()
