"""Comparisons: plans, refusals, and verdicts that never claim more than the numbers."""

import json
import math
import shutil
from pathlib import Path

import pytest

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.lab.compare import report as compare_report
from allyouneed.lab.compare.charts import bars, learning_curves, matrix, pareto, pareto_front, worth_drawing
from allyouneed.lab.compare.comparison import Comparison, judge, summary
from allyouneed.lab.compare.equal_size import count_parameters, with_parameters
from allyouneed.lab.compare.plan import (
    CompareOptions,
    ComparisonPlan,
    System,
    TaskFacts,
    make_plan,
    settings_that_differ,
)
from allyouneed.lab.compare.report import (
    budget_text,
    cost_table,
    result_table,
    transfer,
    verdict_lines,
    write_comparison,
)
from allyouneed.lab.compare.variations import read_variations, split_values
from allyouneed.lab.jobs import Outcome, Point, failure, finished, outcome_of
from allyouneed.sizes import Sizes
from allyouneed.training import Recipe, load_recipe, train
from allyouneed.training.recipe_files import find_recipe

pytestmark = pytest.mark.no_shapes
SMALL = ["task.valid=5", "task.test=5"]
NUMBERS = ["task.pairs=50", *SMALL]


def plan_of(folder: Path, *recipes: str, **more: object) -> ComparisonPlan:
    return make_plan(CompareOptions(recipes, **{"sets": SMALL, **more}), folder)  # type: ignore[arg-type]


# --- variations ------------------------------------------------------------------------------------------------------


def test_values_are_split_outside_brackets_and_quotes() -> None:
    assert split_values('a,{b=1,c=[2,3]},"d,e",f') == ["a", "{b=1,c=[2,3]}", '"d,e"', "f"]


def test_names_are_short_unless_ambiguous() -> None:
    copy = load_recipe("copy")
    found = read_variations(["model.norm=post", "model.dropout=0.1", "task.dropout=1"], copy)
    assert [variation.name for variation in found] == ["norm=post", "model.dropout=0.1", "task.dropout=1"]
    assert found[0].sets == ("model.norm=post",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model.norm", "should look like"),
        ("model.norm=pre,,post", "should look like"),
        ("seed=1,2", "--seeds"),
        ("train.budget.steps=1,2", "--steps"),
        ("model.norm=post,post", "twice"),
        ("train.patience=1,2", "--set changes it for all"),
        ("task.valid=5,50", "--set changes it for all"),
        ("task.lengths=[1,5],[1,9]", "--set changes it for all"),
    ],
)
def test_bad_variations_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_variations([text], load_recipe("copy"))


def test_table_3_matches_the_paper_for_its_base_model() -> None:
    base = load_recipe("transformer-base")
    found = {variation.name: variation.sets for variation in read_variations(["table3"], base)}
    names = list(found)
    assert [name for name in names if name.startswith("(A)")] == [f"(A) heads {n}" for n in (1, 4, 16, 32)]
    assert [name for name in names if name.startswith("(B)")] == ["(B) d_k 32", "(B) d_k 16"]
    assert "(C) width 256" in names
    assert "(C) width 1024" in names
    assert "(C) hidden 1024" in names
    assert "(C) hidden 4096" in names
    assert found["(E) learned positions"] == ("model.positions=learned",)
    with pytest.raises(ConfigError, match="encoder-decoder"):
        read_variations(["table3"], load_recipe("bahdanau-numbers-en-de"))


# --- plans -----------------------------------------------------------------------------------------------------------


def test_one_thing_is_varied_at_a_time(tmp_path: Path) -> None:
    vary = ["model.norm=pre,post", "model.mixer.heads=1,2", 'model={feedforward="swiglu",dropout=0.1}']
    plan = plan_of(tmp_path, "copy", vary=vary, seeds=2, budget={"steps": 7})
    assert [system.name for system in plan.systems][:4] == ["baseline", "norm=post", "heads=1", "heads=2"]
    assert plan.notes == ["norm=pre: already the setting of copy"]
    assert len(plan.jobs()) == 5 * 2
    for system in plan.systems:
        assert system.recipes["copy"].train.budget.steps == 7
    base = plan.baseline.recipes["copy"]
    both = settings_that_differ(plan.systems[4].recipes["copy"], base)
    assert both == {"model.feedforward": ("swiglu", "relu"), "model.dropout": (0.1, 0.0)}
    assert [job.recipe.seed for job in plan.jobs()] == [1] * 5 + [2] * 5
    assert plan.tasks[0].metric == "exact"
    assert plan.tasks[0].higher_is_better


def test_recipes_share_task_budget_and_search_with_the_first(tmp_path: Path) -> None:
    recipes = ("numbers-en-de", "sutskever-numbers-en-de", "bytenet-numbers-en-de")
    plan = plan_of(tmp_path, *recipes, sets=NUMBERS, metric="loss")
    first, second, third = (system.recipes["numbers-en-de"] for system in plan.systems)
    assert first.task == second.task == third.task
    assert second.train.budget.steps == first.train.budget.steps == 500  # not its own 1,000
    assert second.train.optimizer.type == "adam"
    assert third.task.tokenizer.kind == "words"  # type: ignore[union-attr]
    assert any("bytenet" in note and "tokenizer" in note for note in plan.notes)
    assert not plan.tasks[0].higher_is_better


def test_a_variation_is_applied_to_the_recipe_of_each_task(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "copy", tasks=["sort"], vary=["model.encoder_layers=1,2"], models=["seq2seq"])
    assert [task.name for task in plan.tasks] == ["copy", "sort"]
    assert {system.name: list(system.recipes) for system in plan.systems} == {
        "baseline": ["copy", "sort"],
        "encoder_layers=1": ["sort"],  # already the setting of copy
        "encoder_layers=2": ["copy"],
        "seq2seq": ["copy", "sort"],
    }
    assert plan.systems[1].recipes["sort"].task.type == "sort"
    assert len(plan.jobs()) == 6 * 3


@pytest.mark.parametrize(
    ("recipes", "more", "message"),
    [
        (["copy"], {}, "nothing to compare"),
        (["copy"], {"vary": ["model.norm=pre"]}, "nothing to compare: norm=pre: already the setting of copy"),
        (["copy"], {"vary": ["model.norm=pree"]}, "norm=pree on copy: model.norm"),
        (["copy"], {"vary": ["model.mixer.heads=5"]}, "heads=5 on copy: .*not divisible"),
        (["copy", "sort"], {}, "its task is 'sort'"),
        (["copy", "copy"], {}, "named twice"),
        (["copy", "copy"], {"vary": ["model.norm=post"]}, "change one recipe"),
        (["copy"], {"vary": ["model.norm=post"], "tasks": ["copy"]}, "named twice"),
        (["copy"], {"vary": ["model.norm=post"], "metric": "exat"}, "did you mean 'exact'"),
        (["copy"], {"models": ["sequence"]}, "sequence on copy: model: unknown name"),
        (["copi"], {}, "did you mean 'copy'"),
        (["copy"], {"vary": ['train={metric="loss"}']}, "train.metric is the same for all runs"),
        (["copy"], {"vary": ["task={valid=7}"]}, "task.valid is the same for all runs"),
    ],
)
def test_impossible_plans_are_refused_before_any_run(tmp_path: Path, recipes: list, more: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(tmp_path, *recipes, **more)


def test_a_variation_of_the_task_adds_a_note(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "copy", vary=["task.symbols=5"])
    assert plan.notes == ["symbols=5: changes task.symbols: it may be scored on other items than the baseline"]


# --- equal parameters ------------------------------------------------------------------------------------------------

SIZES = Sizes(40, 60)


@pytest.mark.parametrize("name", ["bahdanau", "sutskever", "bytenet", "convs2s", "luong"])
def test_rivals_get_the_parameters_of_the_baseline(name: str) -> None:
    wanted = count_parameters(load_recipe("numbers-en-de"), SIZES)
    rival = load_recipe(f"{name}-numbers-en-de")
    assert abs(count_parameters(rival, SIZES) / wanted - 1) > 0.05, "nothing to adjust"
    matched = with_parameters(rival, wanted, SIZES, name)
    assert abs(count_parameters(matched, SIZES) / wanted - 1) <= 0.05
    assert all(key.startswith("model.") for key in settings_that_differ(matched, rival))


def test_varied_widths_are_not_adjusted(tmp_path: Path) -> None:
    vary = ["model.width=32,48", "model.feedforward=swiglu"]
    plan = plan_of(tmp_path, "copy", vary=vary, equal_parameters=True)
    base, narrow, middle, gated = (system.recipes["copy"] for system in plan.systems)
    wanted = count_parameters(base, plan.tasks[0].sizes)
    assert narrow.model.width == 32  # type: ignore[attr-defined]
    assert middle.model.width == 48  # type: ignore[attr-defined]
    assert narrow.model.hidden > middle.model.hidden > 128  # type: ignore[attr-defined]
    assert gated.model.hidden == pytest.approx(128 * 2 / 3, abs=1)  # type: ignore[attr-defined]
    for recipe in (narrow, middle, gated):
        assert abs(count_parameters(recipe, plan.tasks[0].sizes) / wanted - 1) <= 0.05


def test_unreachable_parameter_counts_are_refused() -> None:
    memory = load_recipe("memn2n-babi")
    with pytest.raises(ConfigError, match="the nearest to 1 is"):
        with_parameters(memory, 1, SIZES, "memory")
    with pytest.raises(ConfigError, match="no width to adjust"):
        with_parameters(memory, 1, SIZES, "memory", frozenset({"width"}))


def test_a_run_killed_before_its_model_was_written_keeps_its_outcome(tmp_path: Path) -> None:
    """The log's last line is written before the model, so a finished run always has it."""
    sets = ["task.valid=5", "task.batch=4", "model.width=16", "model.hidden=16", "train.budget.steps=4"]
    recipe = load_recipe("copy", None, sets)
    train(recipe, tmp_path / "run", cores=1)
    before = outcome_of(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    assert finished(tmp_path / "run", recipe) is None
    train(recipe, tmp_path / "run", cores=1)
    after = finished(tmp_path / "run", recipe)
    assert before is not None
    assert after is not None
    assert after.scores == before.scores
    assert after.curve == before.curve


# --- verdicts --------------------------------------------------------------------------------------------------------


def outcome(name: str, exact: float, seconds: float = 10.0) -> Outcome:
    points = [Point(i, 100 * i, 1e6 * i, i * seconds / 4, {"loss": (1 + i) ** -0.5}) for i in range(1, 5)]
    return Outcome(name, 1000, 4, 400, 4e6, seconds, {"exact": exact, "loss": 1 - exact}, points)


def judged(folder: Path, **values: list[float]) -> Comparison:
    """`copy` and two variations; task sort, if planned, has the same values with reversed sign."""
    vary = ["model.norm=post", "model.dropout=0.1"]
    plan = plan_of(folder, "copy", vary=vary, tasks=["sort"], seeds=3)
    outcomes = {}
    for task, sign in (("copy", 1), ("sort", -1)):
        for number, (system, name) in enumerate(zip(plan.systems, ("base", "norm", "drop"), strict=True)):
            runs = [outcome(f"{task}.{name}", sign * value, 10.0 + number) for value in values[name]]
            outcomes[task, system.name] = runs
    return judge(plan, outcomes)


def test_a_clear_difference_is_shown_and_a_small_one_is_not(tmp_path: Path) -> None:
    found = judged(tmp_path, base=[0.50, 0.52, 0.51], norm=[0.91, 0.92, 0.92], drop=[0.49, 0.54, 0.50]).found
    assert found["copy", "norm=post"].shown
    assert found["copy", "norm=post"].verdict == "copy: norm=post is better than baseline by 0.407 (3 seeds)"
    assert found["copy", "norm=post"].better > 4
    assert found["sort", "norm=post"].verdict == "sort: norm=post is worse than baseline by 0.407 (3 seeds)"
    no = "copy: no difference between dropout=0.1 and baseline could be shown with 3 seeds"
    assert found["copy", "dropout=0.1"].verdict == no


def test_multiple_tests_need_smaller_p_values(tmp_path: Path) -> None:
    """p = 0.03 would suffice for one test; of four tests the smallest must be below 0.0125."""
    comparison = judged(tmp_path, base=[0.5, 0.5, 0.5], norm=[0.6, 0.65, 0.7], drop=[0.5, 0.5, 0.5])
    found = comparison.found["copy", "norm=post"]
    assert 0.0125 < found.difference.p < 0.05
    assert not found.shown
    assert summary(comparison) == (
        "Of 4 comparisons with baseline, 0 came out better, 0 worse, and 4 could not be told apart with 3 seeds"
    )


def test_differences_are_paired_by_seed_and_failed_runs_are_left_out(tmp_path: Path) -> None:
    comparison = judged(tmp_path, base=[0.1, 0.5, 0.9], norm=[0.2, 0.6, 1.0], drop=[0.1, 0.5, 0.9])
    assert comparison.found["copy", "norm=post"].difference.interval.mean == pytest.approx(0.1)
    assert not comparison.found["copy", "norm=post"].shown  # always 0.1 apart, but that is half of one of 5 items
    runs = {
        **comparison.outcomes,
        ("copy", "norm=post"): [failure("x", "burnt"), *comparison.outcomes["copy", "norm=post"][1:]],
    }
    again = judge(comparison.plan, runs)
    assert again.found["copy", "norm=post"].difference.interval.count == 2
    assert again.values(again.plan.tasks[0], "norm=post") == {2: 0.6, 3: 1.0}
    assert [one.error for one in again.failures()] == ["burnt"]
    text = again.found["copy", "norm=post"].verdict
    assert text.endswith("could be shown with 2 seeds; 1 of 3 runs of norm=post failed")
    task = again.plan.tasks[0]
    assert "2 to 3 seeds (without failed runs)" in bars(again, task).note
    assert "2 to 3 seeds" in learning_curves(again, task, "tokens").note
    assert "2 to 3 seeds" in pareto(again, task, "seconds").note
    assert "2 to 3 seeds" in matrix(again).note
    assert cost_table(again, task).rows[1][:2] == ["norm=post", "2 of 3"]


@pytest.mark.slow
def test_a_system_without_a_result_is_named(tmp_path: Path) -> None:
    comparison = judged(tmp_path, base=[0.1, 0.5, 0.9], norm=[0.2, 0.6, 1.0], drop=[0.1, 0.5, 0.9])
    runs = {**comparison.outcomes, ("copy", "norm=post"): [failure("x", "burnt")] * 3}
    again = judge(comparison.plan, runs)
    assert verdict_lines(again)[-1] == "copy: norm=post could not be compared: 3 of 3 runs of norm=post failed"
    task = again.plan.tasks[0]
    assert cost_table(again, task).rows[1] == ["norm=post", "0 of 3", *["–"] * 5]
    assert bars(again, task).note.startswith("Mean of 3 seeds with its 95 % interval (Student's t), validation split")
    write_comparison(again, tmp_path / "out", "")


@pytest.mark.slow
def test_one_seed_shows_nothing(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "copy", vary=["model.norm=post"], seeds=1)
    runs = {("copy", "baseline"): [outcome("a", 0.1)], ("copy", "norm=post"): [outcome("b", 0.9)]}
    comparison = judge(plan, runs)
    assert not comparison.found["copy", "norm=post"].shown
    assert "One seed" in summary(comparison)
    page = write_comparison(comparison, tmp_path / "out", "").read_text(encoding="utf-8")
    assert "2 systems on copy, 1 seed each: 2 runs of" in page
    assert "1 seeds" not in page


def test_a_budget_of_one_is_singular(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "copy", vary=["model.norm=post"], budget={"minutes": 1})
    assert budget_text(plan.tasks[0]) == "1 minute"


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_pareto_front() -> None:
    points = [(3.0, 0.5), (1.0, 0.2), (2.0, 0.7), (2.0, 0.1), (4.0, 0.9)]
    assert pareto_front(points, higher_is_better=True) == [(1.0, 0.2), (2.0, 0.7), (4.0, 0.9)]
    assert pareto_front(points, higher_is_better=False) == [(1.0, 0.2), (2.0, 0.1)]


@pytest.mark.slow
def test_the_report_contains_tables_charts_and_verdicts(tmp_path: Path) -> None:
    comparison = judged(tmp_path, base=[0.50, 0.52, 0.51], norm=[0.91, 0.92, 0.92], drop=[0.49, 0.54, 0.50])
    task = comparison.plan.tasks[0]
    assert worth_drawing(comparison, task) == ["seconds"]  # FLOPs and parameters are all the same
    assert matrix(comparison).sure == [[True, True], [False, False]]
    assert transfer(comparison)[0] == "norm=post: better on 1, worse on 1, no difference shown on 0 of 2 tasks."
    assert result_table(comparison, task).rows[0][:3] == ["baseline", "0.510 (0.485 to 0.535)", "baseline"]
    assert cost_table(comparison, task).rows[2] == ["dropout=0.1", "3 of 3", "1,000", "4e+06", "400", "0.20", "4"]
    assert learning_curves(comparison, task, "tokens").y_label == "nats per token"
    page = write_comparison(comparison, tmp_path / "out", "allyouneed compare <copy>")
    html = page.read_text(encoding="utf-8")
    assert html.count("<img") == 2 * 5 + 1  # bars, three curves and one Pareto plot a task, and the matrix
    assert "norm=post is better than baseline by 0.407" in html
    assert "allyouneed compare &lt;copy&gt;" in html
    data = json.loads(page.with_suffix(".json").read_text())
    assert len(data["runs"]) == 18
    assert data["runs"][0]["curve"][3]["tokens"] == 400
    assert {name.name for name in (tmp_path / "out" / "charts").iterdir()} >= {"matrix.png", "copy-bars.png"}


def test_effects_without_a_spread_are_nan(tmp_path: Path) -> None:
    comparison = judged(tmp_path, base=[0.2] * 3, norm=[0.4] * 3, drop=[0.2] * 3)
    assert math.isnan(comparison.found["copy", "norm=post"].better)
    assert not comparison.found["copy", "norm=post"].shown  # the same every time, but one of five items apart
    rows = result_table(comparison, comparison.plan.tasks[0]).rows
    assert rows[1][1:4] == ["0.400 (all 3 seeds)", "+0.200 (-0.297 to +0.697)", "–"]
    clear = judged(tmp_path, base=[-9.0] * 3, norm=[9.0] * 3, drop=[0.2] * 3)
    assert clear.found["copy", "norm=post"].shown


@pytest.mark.slow
def test_names_are_drawn_verbatim_and_json_is_written_before_charts(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    shutil.copy(find_recipe("copy"), tmp_path / "a$b_$c.toml")
    plan = plan_of(tmp_path, str(tmp_path / "a$b_$c.toml"), vary=["model.norm=post"], seeds=2)
    task = plan.tasks[0].name
    runs = {(task, system.name): [outcome("x", 0.1), outcome("y", 0.2, 30.0)] for system in plan.systems}
    write_comparison(judge(plan, runs), tmp_path / "out", "")
    assert (tmp_path / "out" / "charts" / "a-b_-c-bars.png").exists()

    def breaks(*_: object) -> None:
        raise RuntimeError("no room for a picture")

    monkeypatch.setattr(compare_report, "save_chart", breaks)
    with pytest.raises(RuntimeError, match="no room"):
        write_comparison(judge(plan, runs), tmp_path / "other", "")
    assert (tmp_path / "other" / "report.json").exists()


def test_the_loss_of_a_classifier_is_per_prediction(tmp_path: Path) -> None:
    (tmp_path / "texts.tsv").write_text("a\tgood\nb\tbad\n" * 3, encoding="utf-8")
    tree = {
        "task": {"type": "classification", "train": str(tmp_path / "texts.tsv"), "valid": str(tmp_path / "texts.tsv")},
        "model": {"type": "encoder"},
    }
    recipe = parse(Recipe, tree)
    systems = [System("baseline", {"texts": recipe}), System("other", {"texts": recipe})]
    task = TaskFacts("texts", recipe, SIZES, "loss", False, 0.1)
    runs = {("texts", system.name): [outcome("x", 0.1)] for system in systems}
    chart = learning_curves(judge(ComparisonPlan([task], systems, [1], []), runs), task, "tokens")
    assert chart.y_label == "nats per prediction"
