"""`allyouneed cost` and `allyouneed flow`, in processes."""

import json

import pytest
from cli_commands import Commands

pytestmark = pytest.mark.no_shapes


def test_cost_prints_tables_and_writes_a_report(run: Commands) -> None:
    sizes = ["--length", "64", "--length", "128", "--width", "32", "--width", "64"]
    done = run("cost", "--mixer", "local", "--mixer", "convolution", *sizes, "--out", "cost")
    assert done.status == 0, done.err
    assert "Declared FLOPs equal counted FLOPs exactly: 2 mixers, 12 sizes." in done.out
    assert "within 0.15 of theory" in done.out
    data = json.loads((run.folder / "cost" / "report.json").read_text())
    assert data["mixers"]["local"]["path"] == [{"n": 64, "layers": 1}, {"n": 512, "layers": None}]
    assert (run.folder / "cost" / "report.html").exists()


def test_flow_of_a_trained_model(run: Commands, language: str) -> None:
    done = run("flow", language, "--out", "flow")
    assert done.status == 0, done.err
    assert "The model before training" in done.out
    assert "The model after training" in done.out
    assert (run.folder / "flow" / "flow-2.png").exists()


def test_flow_reports_training_progress(run: Commands) -> None:
    mixers = ["--mixer", "rnn", "--mixer", "softmax", "--length", "16", "--width", "16", "--symbols", "3"]
    arguments = ["flow", *mixers, "--steps", "4", "--out", "flows"]
    done = run(*arguments)
    assert done.status == 0, done.err
    assert "training 2 models for 4 steps" in done.err
    assert {line[:3] for line in done.err.splitlines() if ": exact " in line} == {"1/2", "2/2"}
    again = run(*arguments)
    assert "2 of 2 runs kept from before" in again.err
    assert again.out == done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cost", "--mixer", "sofmax"), "--mixer: unknown name 'sofmax' (did you mean 'softmax'?)"),
        (("cost", "--length", "64"), "--length: 64: needs two sizes or more"),
        (("cost", "--width", "32"), "--width: 32: needs two sizes or more"),
        (("cost", "--width", "32", "--width", "40"), "--width: 40: should be a multiple of 32"),
        (("flow", "--seed", "99999999999999999999"), "--seed 99999999999999999999: should be"),
        (("flow", "nowhere", "--mixer", "lstm"), "--mixer: has no effect on given folders"),
        (("flow", "nowhere", "--steps", "300"), "--steps: has no effect on given folders"),
        (("flow", "--mixer", "linformer"), "not causal"),
        (("flow", "nowhere"), "nowhere"),
    ],
)
def test_errors_are_one_line(run: Commands, arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments, "--out", "never")
    assert done.status == 2
    assert message in done.err
    assert done.err.count("\n") == 1 or done.err.startswith("  0%")
    assert not (run.folder / "never").exists()


def test_flow_of_a_classifier_is_refused(run: Commands, classifier: str) -> None:
    done = run("flow", classifier, "--out", "never")
    assert done.status == 2
    assert "this one is an encoder" in done.err
