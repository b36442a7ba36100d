"""A budget in minutes holds everything up to the finished model, and the schedule comes to its end.

Tests look at the accounts of a run, not at how long it took: the machine may be busy with other things.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from allyouneed.config import parse
from allyouneed.folder import load_folder
from allyouneed.training import Interrupted, Recipe, train
from allyouneed.training.checkpoint import Checkpoints
from allyouneed.training.evaluate import Measurement, OutOfTime, evaluate
from allyouneed.training.log import read_log
from allyouneed.training.loop import Run
from allyouneed.training.pace import CLOSING_SECONDS, PROBE_SHARE, Pace, TimePlan, measure_within, predict_seconds
from allyouneed.training.progress import Progress, SilentListener
from allyouneed.training.recipe import TrainConfig
from allyouneed.verification.card_scores import check_scores

TINY: dict[str, Any] = {
    "task": {"type": "copy", "batch": 8, "valid": 300, "test": 8},
    "model": {"type": "encoder-decoder", "width": 16, "hidden": 16, "encoder_layers": 1, "decoder_layers": 1},
    "train": {"budget": {"minutes": 0.1}, "evaluate_every": 0.1, "log_every": 1, "schedule": "linear"},
    "decode": {"beam": 2},
}


def recipe(**train: Any) -> Recipe:
    return parse(Recipe, {**TINY, "train": {**TINY["train"], **train}})


class Notes(SilentListener):
    """Keeps the notes of a run, and may stop it after a step, as a signal would."""

    def __init__(self, stop_at: float = float("inf")) -> None:
        self.lines: list[str] = []
        self.stop_at = stop_at

    def note(self, line: str) -> None:
        self.lines.append(line)

    def progress(self, fraction: float, record: dict[str, Any]) -> None:
        if fraction >= self.stop_at:
            self.stop_at = float("inf")
            os.kill(os.getpid(), signal.SIGTERM)


class Clock:
    """A clock that moves only when something is done."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow:
    """A measurement of 1,000 items, each of which takes some seconds of a clock."""

    def __init__(self, clock: Clock, seconds: float, size: int = 1000) -> None:
        self.clock, self.seconds, self.size = clock, seconds, size
        self.items, self.whole, self.deadline = 0, False, float("inf")
        self.decodes, self.target_length = True, 20.0

    def extend(self, items: int | None = None) -> None:
        items = self.size if items is None else min(items, self.size)
        self.clock.now += (items - self.items) * self.seconds
        if self.clock.now > self.deadline:
            raise OutOfTime
        self.items, self.whole = items, items == self.size


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("allyouneed.training.pace.time.monotonic", clock)
    return clock


# --- the plan, by a clock that is moved by hand ------------------------------------------------------------------


def simulate(config: TrainConfig, clock: Clock, step: Any, evaluation: float, final: float) -> dict[str, Any]:
    """Return the account of a run whose steps and evaluations take these seconds, as the loop would make it."""
    plan, clock.now = TimePlan(config, Pace()), 3.0  # of preparation
    pace, due, steps, evaluations = plan.pace, 0, 0, 0
    while pace.fraction < 1:
        plan.begin_step(clock.now, due)
        clock.now += step(steps)
        steps += 1
        plan.end_step(clock.now)
        if plan.probe_is_due():
            taken = min(0.01 * (evaluation + final), 2 * PROBE_SHARE * plan.allowance)
            plan.learn_cost(evaluation, final, taken, due)
            clock.now += taken
        if int(pace.fraction / config.evaluate_every + 1e-9) > due and plan.may_evaluate():
            due, evaluations = int(pace.fraction / config.evaluate_every + 1e-9), evaluations + 1
            part = pace.items / 1000 if pace.items else min(1.0, plan.evaluation_seconds(due - 1)[0] / evaluation)
            plan.learn_evaluation(max(1, round(part * 1000)), part * evaluation)
            clock.now += part * evaluation
    before = clock.now
    clock.now += max(0.0, min(final, plan.final_seconds(clock.now)))
    return {"seconds": clock.now, "steps": steps, "evaluations": evaluations, "last": before, "pace": pace}


@pytest.mark.parametrize("evaluation", [0.01, 3.0, 100.0])
@pytest.mark.parametrize("final", [0.1, 20.0, 2000.0])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
def test_the_minutes_are_kept_whatever_evaluations_take(
    evaluation: float, final: float, share: float, clock: Clock
) -> None:
    config = recipe(budget={"minutes": 5}, evaluation_share=share).train
    found = simulate(config, clock, lambda step: 0.2, evaluation, final)
    assert found["pace"].fraction == 1
    assert 0.75 * 300 < found["seconds"] <= 300 - CLOSING_SECONDS + 0.2  # of the last step
    spent_on_evaluation = found["pace"].evaluating + found["seconds"] - found["last"]
    assert spent_on_evaluation <= share * 300 + 1
    assert 1 <= found["evaluations"] <= 10
    if evaluation < 0.1:
        assert found["evaluations"] == 10


def test_the_schedule_comes_to_its_end_though_steps_become_slower_and_faster(clock: Clock) -> None:
    config = recipe(budget={"minutes": 5}).train
    for speed in (lambda step: 0.1 + 0.002 * step, lambda step: max(0.05, 1 - 0.01 * step), lambda step: 40.0):
        found = simulate(config, clock, speed, 1.0, 5.0)
        assert found["pace"].fraction == 1
        assert found["seconds"] <= 300 + max(1.0, speed(found["steps"]))


def test_the_fraction_grows_evenly_and_is_1_at_the_last_step() -> None:
    plan, seconds, fractions = TimePlan(recipe(budget={"minutes": 1}).train, Pace()), 10.0, []
    while plan.pace.fraction < 1:
        fractions.append(plan.begin_step(seconds, 0))
        seconds += 0.5
        plan.end_step(seconds)
    assert fractions[0] == 0  # the time of a step is not known yet
    assert fractions[-1] == 1
    middle = fractions[len(fractions) // 2]
    assert 0.45 < middle < 0.55
    assert fractions == sorted(fractions)
    assert abs(seconds - (60 - plan.reserve(0))) <= 0.5


def test_a_busy_machine_gets_more_time_to_close_its_files() -> None:
    plan = TimePlan(recipe(budget={"minutes": 5}).train, Pace())
    idle = plan.final_seconds(290)
    plan.learn_saving(0.0, 4.0)
    assert idle - plan.final_seconds(290) == pytest.approx(3 * CLOSING_SECONDS)
    plan.learn_saving(0.0, 1e6)  # a process that waited most of the time
    assert plan.final_seconds(200) > 0


def test_the_last_evaluation_may_take_the_time_of_the_final_measurement() -> None:
    plan = TimePlan(recipe(budget={"minutes": 5}).train, Pace(fraction=0.5, items=100, evaluation=1.0, evaluating=10.0))
    assert plan.longest_evaluation(150) == 3
    plan.pace.fraction = 1.0
    assert plan.longest_evaluation(280) == pytest.approx(20 - CLOSING_SECONDS)
    assert plan.longest_evaluation(299.5) == plan.allowance / 2  # even after the minutes


def test_an_evaluation_is_not_given_up_at_once() -> None:
    pace = Pace(fraction=0.5, items=100, evaluation=0.01, evaluating=50.0)  # more than its share
    assert TimePlan(recipe(budget={"minutes": 5}).train, pace).longest_evaluation(150) == 3


def test_less_often_is_said_only_if_it_is() -> None:
    plan = TimePlan(recipe(budget={"minutes": 1}, evaluate_every=0.25).train, Pace(fraction=0.3, evaluation=0.5))
    assert plan.describe_delay(30).startswith("step 30: evaluating later than train.evaluate_every=0.25, so that")
    plan.pace.evaluation = 5.0
    assert plan.describe_delay(30).startswith("evaluating about every 70 steps, less often than")


def test_a_plan_resumes_from_what_a_checkpoint_stores() -> None:
    progress = Progress()
    progress.pace = Pace(
        fraction=0.5, evaluating=3.0, items=100, evaluation=1.0, final=4.0, saving=0.1, slowdown=2.0, probes=2
    )
    assert Progress.from_dict(progress.as_dict()).pace == progress.pace
    state = {name: value for name, value in progress.as_dict().items() if name != "pace"}
    assert Progress.from_dict(state).pace == Pace()  # of an earlier version


# --- measuring a part --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("each", "seconds", "least", "most"), [(0.001, 10, 8, 10), (0.1, 10, 8, 10), (5.0, 10, 8, 10), (0.1, 1, 50, 20)]
)
def test_a_measurement_takes_the_time_that_it_gets(
    each: float, seconds: float, least: int, most: float, clock: Clock
) -> None:
    slow: Any = Slow(clock, each)
    measure_within(slow, seconds, most, least)
    if each * 1000 <= seconds:
        assert slow.whole
    elif each == 5.0:  # even the first items take longer
        assert slow.items == 8
    else:
        assert min(seconds, each * least) / 2 <= clock.now <= max(seconds, most)
        assert slow.items >= least


def test_a_measurement_that_becomes_slower_is_given_up(clock: Clock) -> None:
    slow: Any = Slow(clock, 0.01)
    first = slow.extend

    def slower(items: int | None = None) -> None:
        first(items)
        slow.seconds = 1.0

    slow.extend = slower
    measure_within(slow, 20.0)
    assert slow.items == 8


def test_the_time_of_a_whole_measurement_is_predicted(clock: Clock) -> None:
    slow: Any = Slow(clock, 0.01)
    assert predict_seconds(slow, 1.0) == pytest.approx(2 * 10.0)  # 10 of 20 tokens were decoded
    assert 0.5 <= clock.now <= 1.3


def test_parts_of_a_split_add_up_to_the_whole(tmp_path: Path) -> None:
    run = Run(recipe(budget={"steps": 1}), tmp_path, SilentListener(), __import__("torch").device("cpu"))
    run.close()
    whole = evaluate(run.model, run.data, "valid", run.recipe.decode)
    parts = Measurement(run.model, run.data, "valid", run.recipe.decode)
    for items in (8, 50, None):
        parts.extend(items)
        if items == 50:
            half = parts.scores()
    assert parts.items == parts.size == 300
    for one, other in zip(whole, parts.scores(), strict=True):
        assert (one.name, one.signature) == (other.name, other.signature)
        assert one.value == pytest.approx(other.value, rel=1e-5)
    assert all("|items:50/300|" in score.signature for score in half)
    again = evaluate(run.model, run.data, "valid", run.recipe.decode, items=50)
    assert [score.signature for score in again] == [score.signature for score in half]
    assert [score.value for score in again] == pytest.approx([score.value for score in half], rel=1e-5)
    parts = Measurement(run.model, run.data, "valid", run.recipe.decode)
    parts.extend(8)
    before = parts.scores()
    parts.deadline = 0.0
    with pytest.raises(OutOfTime):
        parts.extend()
    assert parts.scores() == before


# --- real runs ---------------------------------------------------------------------------------------------------


def account(folder: Path) -> dict[str, Any]:
    records = read_log(folder / "log.jsonl")
    assert [record["kind"] for record in records][-2:] == ["time", "end"]
    steps = [record for record in records if record["kind"] == "step"]
    return {**records[-2], "lr_factor": steps[-1]["lr_factor"], "last_step": steps[-1]["step"]}


def test_a_run_of_seconds_ends_its_schedule(tmp_path: Path) -> None:
    train(recipe(), tmp_path)
    found = account(tmp_path)
    assert found["fraction"] == 1
    assert found["lr_factor"] == 0  # linear to zero
    assert found["last_step"] == found["step"]  # the last step is logged


def test_slow_evaluations_use_fewer_items_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch_loss = evaluate.__globals__["batch_loss"]

    def slow(*arguments: Any) -> Any:
        time.sleep(0.05)  # 38 batches: 2 s for a whole evaluation, where 0.6 s are allowed for all of them
        return batch_loss(*arguments)

    monkeypatch.setitem(evaluate.__globals__, "batch_loss", slow)
    notes = Notes()
    model = train(recipe(), tmp_path, notes)
    found = account(tmp_path)
    assert found["fraction"] == 1
    assert found["lr_factor"] == 0
    text = "\n".join(notes.lines)
    assert "of 300 held-out items, so that it takes at most 10% of the time (train.evaluation_share)" in text
    assert "Measured on " in text
    assert "Measured on " in (model / "README.md").read_text()
    findings = list(check_scores(load_folder(model)))  # on the same part
    assert findings
    assert all(finding.verdict == "ok" for finding in findings), findings


def test_the_last_weights_are_chosen_if_there_is_no_time_to_measure_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = TimePlan.longest_evaluation

    def none_at_the_end(plan: TimePlan, seconds: float) -> float:
        return longest(plan, seconds) if plan.pace.fraction < 1 else -1.0

    monkeypatch.setattr(TimePlan, "longest_evaluation", none_at_the_end)
    notes = Notes()
    train(recipe(), tmp_path, notes)
    records = read_log(tmp_path / "log.jsonl")
    end = records[-1]
    assert end["chosen"] == end["step"]
    if not any(record["kind"] == "evaluation" and record["step"] == end["step"] for record in records):
        assert any("the weights of this last step are chosen" in line for line in notes.lines)
    assert any(f"of step {end['chosen']:,}, on the validation split" in line for line in notes.lines)


def test_a_stopped_run_resumes_its_seconds_and_its_fraction(tmp_path: Path) -> None:
    wanted = recipe(budget={"minutes": 0.15})
    with pytest.raises(Interrupted):
        train(wanted, tmp_path, Notes(stop_at=0.5))
    latest = Checkpoints(tmp_path).latest()
    assert latest is not None
    state = Checkpoints(tmp_path).load(latest).state
    train(wanted, tmp_path)
    records = read_log(tmp_path / "log.jsonl")
    second = next(place for place, record in enumerate(records) if place and record["kind"] == "start")
    resumed = next(record for record in records[second:] if record["kind"] == "step")
    assert resumed["seconds"] >= state["spent"]["seconds"]
    assert account(tmp_path)["lr_factor"] == 0
    factors = [record["lr_factor"] for record in records if record["kind"] == "step"]
    assert factors[-1] == 0


def test_a_preparation_that_takes_all_minutes_is_reported(tmp_path: Path) -> None:
    notes = Notes()
    train(recipe(budget={"minutes": 0.0001}), tmp_path, notes)
    assert any(line.startswith("the preparation took") for line in notes.lines)
    assert account(tmp_path)["fraction"] == 1


def test_a_larger_share_changes_the_run(tmp_path: Path) -> None:
    small, large = (TimePlan(recipe(evaluation_share=share).train, Pace()) for share in (0.1, 0.4))
    assert small.reserve(0) < large.reserve(0)
    assert small.evaluation_seconds(0) < large.evaluation_seconds(0)
