"""The endpoints behind the page: models, maps, programs and runs, invalid requests, and files that stay private."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from page_models import PROGRAM, make_folders, request, serving, write_run
from safetensors.torch import load_file

from allyouneed.errors import DataError
from allyouneed.processes import BoundedProcesses
from allyouneed.serve.program import COMMAND, example_programs, parse_input
from allyouneed.serve.runs import MAX_POINTS, list_runs, read_run, thinned
from allyouneed.storage import lock

pytestmark = pytest.mark.no_shapes  # the server runs in another thread


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    write_run(folder / "runs" / "one", 100, end=True)
    with serving(make_folders(folder), folder / "runs", max_attention_tokens=40) as url:
        yield url


def test_every_model_is_described(server: str) -> None:
    status, found = request(f"{server}/api/models")
    assert status == 200
    models = {one["name"]: one for one in found}
    assert list(models) == ["transformer", "bahdanau", "lstm", "language", "reverse"]
    transformer, lstm, language = models["transformer"], models["lstm"], models["language"]
    assert transformer["architecture"] == "encoder-decoder, softmax, 2+2 layers"
    assert transformer["languages"] == ["en", "de"]
    assert [one["task"] for one in found] == ["numbers", "numbers", "numbers", "language", "rasp"]
    assert (transformer["path"], transformer["steps"], transformer["maps"]) == (1, 1, True)
    assert (lstm["path"], lstm["steps"], lstm["maps"]) == (1, 32, False)
    assert transformer["example"]
    assert (language["kind"], language["source"], language["target"]) == ("decoder", False, True)
    assert "cat" in language["example"] or "mat" in language["example"]
    assert (models["reverse"]["source"], models["reverse"]["target"]) == (True, False)


def test_page_and_card_count_parameters_alike(server: str, folder: Path) -> None:
    _, found = request(f"{server}/api/models")
    for one in found[:-1]:  # the last is a compiled program, whose card lists its layers instead
        card = (folder / one["name"] / "model" / "README.md").read_text(encoding="utf-8")
        assert f"\n{one['parameters']:,} parameters, trained" in card  # the server's weights are packed, the card's not
    weights = load_file(folder / "transformer" / "model" / "model.safetensors")
    assert found[0]["parameters"] == sum(weight.numel() for weight in weights.values())  # a tied weight is stored once


@pytest.mark.parametrize("model", ["transformer", "bahdanau", "lstm", "language", "reverse"])
def test_maps_fit_their_tokens(server: str, model: str) -> None:
    text = "abcd" if model == "reverse" else "forty-one"
    status, found = request(f"{server}/attention", {"model": model, "text": text, "max_tokens": 6})
    assert status == 200
    assert found["maps"]
    for one in found["maps"]:
        for axis, size in ((one["rows"], len(one["weights"][0])), (one["columns"], len(one["weights"][0][0]))):
            assert axis == "other" or len(found[axis]) == size
    assert bool(found["note"]) == (model == "lstm")
    assert found["unknown"] == []


def test_unknown_words_of_maps(server: str) -> None:
    _, found = request(f"{server}/attention", {"model": "transformer", "text": "Hello, forty people?"})
    assert found["unknown"] == ["Hello,", "people?"]
    _, found = request(f"{server}/attention", {"model": "language", "text": "Hello, forty people?"})
    assert found["unknown"] == []


def test_a_given_target_is_inspected(server: str) -> None:
    _, found = request(f"{server}/attention", {"model": "transformer", "text": "forty-one", "target": "zwei"})
    assert found["target"] == [*"zwei", "end"]
    assert found["answer"] == "zwei"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "missing", "text": "a"}, 404, "unknown name"),
        ({"model": "transformer", "text": "one " * 60}, 400, "more than 40 tokens"),
        ({"model": "reverse", "text": "xyz"}, 400, "not in the model's vocabulary"),
        ({"model": "reverse", "text": "ab", "target": "ba"}, 400, "classifier"),
        ({"model": "transformer"}, 400, "text"),
        ({"model": "transformer", "text": "one", "colour": "red"}, 400, "colour"),
        ({"model": "transformer", "text": 7}, 400, "text"),
        ({"model": "transformer", "text": "one", "max_tokens": -1}, 400, "max_tokens"),
        ({"model": "transformer", "text": "\ud800"}, 400, "text"),
    ],
)
def test_invalid_requests_are_explained(server: str, body: Any, status: int, words: str) -> None:
    found = request(f"{server}/attention", body)
    assert found[0] == status, found
    assert words in found[1]["error"]["message"]


def test_only_the_files_of_the_page_are_served(server: str) -> None:
    with urllib.request.urlopen(f"{server}/") as response:
        assert "default-src 'none'; script-src 'self'" in response.headers["Content-Security-Policy"]
        assert b"<script type" in response.read()
    with urllib.request.urlopen(f"{server}/page/main.js") as response:
        assert response.headers["Content-Type"].startswith("text/javascript")
    for path in ("/page/../inspect.py", "/page/..%2finspect.py", "/page/nothing.js", "/page/"):
        assert request(f"{server}{path}")[0] == 404


def test_the_page_never_parses_text_as_markup() -> None:
    page = Path(__file__).parents[2] / "src" / "allyouneed" / "serve" / "page"
    for file in page.glob("*.js"):
        text = file.read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser", "http:"):
            assert word not in text, f"{file.name} has {word}"
    assert "style=" not in (page / "index.html").read_text(encoding="utf-8")


# --- programs --------------------------------------------------------------------------------------------------------


def test_a_program_returns_its_values_and_its_model(server: str) -> None:
    status, found = request(f"{server}/rasp", {"program": PROGRAM, "input": "hello"})
    assert status == 200
    assert found["output"] == list("olleh")
    values = {one["name"]: one for one in found["values"]}
    assert values["flip"]["kind"] == "selector"
    assert values["flip"]["matrix"][0] == [False, False, False, False, True]
    compiled = found["compiled"]
    assert compiled["equal"]
    assert compiled["output"] == list("olleh")
    assert compiled["tokens"] == ["start", *"hello"]
    weights = compiled["maps"][-1]["weights"][0]
    assert [row.index(max(row)) for row in weights] == [5, 4, 3, 2, 1]


def test_statements_before_an_error_are_shown(server: str) -> None:
    _, found = request(f"{server}/rasp", {"program": PROGRAM + "\nx = aggregate(flip;", "input": "hey"})
    assert found["output"] == list("yeh")
    assert found["error"]["line"] == 4
    assert found["compiled"] is None


def test_programs_that_do_not_compile_still_run(server: str) -> None:
    program = 'x = tokens + "";\n' + "x = x + x + tokens;\n" * 4
    _, found = request(f"{server}/rasp", {"program": program, "input": "abcdefghij" * 3})
    assert found["error"] is None
    assert found["compiled"]["refused"] or found["compiled"]["equal"]


@pytest.mark.parametrize(
    ("program", "given", "words"),
    [
        ('load "/etc/passwd";', "abc", "files cannot be loaded here"),
        ("x = 1/0;", "abc", "division"),
        ("x = y;", "abc", "Undefined variable"),
        ("x = tokens + 1;", "abc", ""),
        ("def f(x) { return f(x); } y = f(1);", "abc", ""),
    ],
)
def test_errors_of_programs_are_responses(server: str, program: str, given: str, words: str) -> None:
    status, found = request(f"{server}/rasp", {"program": program, "input": given})
    assert status == 200
    assert words in found["error"]["message"]


def test_inputs_are_bounded(server: str) -> None:
    for given in ("", "a" * 65, "a" * 2000):
        status, found = request(f"{server}/rasp", {"program": PROGRAM, "input": given})
        assert status == 400
        assert "input" in found["error"]["message"]


def test_a_program_that_times_out_is_killed_and_the_next_one_runs() -> None:
    processes = BoundedProcesses(COMMAND, "program", 1, 0)
    try:
        with pytest.raises(DataError, match="seconds"):
            processes.run({"text": PROGRAM, "given": "ab"})
        processes.seconds = 30.0
        assert processes.run({"text": PROGRAM, "given": "ab"})["output"] == ["b", "a"]
    finally:
        processes.close()


def test_lists_of_numbers_are_inputs_too() -> None:
    assert parse_input("[1, 2, 3]") == [1, 2, 3]
    assert parse_input("[[1]]") == "[[1]]"
    assert parse_input("[}") == "[}"


def test_example_programs_have_inputs() -> None:
    found = {one.name: one for one in example_programs()}
    assert found["sort"].input == "hello"
    assert found["dyck2"].input == "{(})"
    assert all(one.program and one.about for one in found.values())


# --- runs ------------------------------------------------------------------------------------------------------------


def test_runs_and_their_curves(server: str) -> None:
    status, found = request(f"{server}/runs")
    assert status == 200
    (one,) = found
    assert (one["name"], one["state"], one["step"], one["fraction"]) == ("one", "finished", 100, 1.0)
    status, log = request(f"{server}/runs/one")
    assert [record["step"] for record in log["steps"]] == list(range(10, 101, 10))
    assert log["end"]["chosen"] == 100
    assert "budget" in log["recipe"]
    _, later = request(f"{server}/runs/one?after=70")
    assert [record["step"] for record in later["steps"]] == [80, 90, 100]
    for name in ("two", "..", "..%2Fone", "one%2Flog.jsonl", "%00", "."):
        assert request(f"{server}/runs/{name}")[0] in (200, 404)
        assert "steps" not in (request(f"{server}/runs/{name}")[1] or {})


def test_symlinks_are_not_followed(tmp_path: Path) -> None:
    write_run(tmp_path / "elsewhere", 10)
    runs = tmp_path / "runs"
    write_run(runs / "real", 10)
    (runs / "linked").symlink_to(tmp_path / "elsewhere")
    (runs / "half").mkdir()
    (runs / "half" / "log.jsonl").symlink_to(tmp_path / "elsewhere" / "log.jsonl")
    (runs / "real" / "recipe.toml").unlink()
    (runs / "real" / "recipe.toml").symlink_to("/etc/passwd")
    assert [one.name for one in list_runs(runs)] == ["real"]
    assert read_run(runs, "linked") is None
    assert read_run(runs, "half") is None
    found = read_run(runs, "real")
    assert found is not None
    assert found.recipe == ""


def test_incomplete_and_damaged_logs(tmp_path: Path) -> None:
    write_run(tmp_path / "live", 50)
    with (tmp_path / "live" / "log.jsonl").open("a") as log:
        log.write('nonsense\n[1]\n{"kind": "step", "step": 60, "loss": NaN}\n{"kind": "step", "st')
    found = read_run(tmp_path, "live")
    assert found is not None
    assert found.steps[-1] == {"kind": "step", "step": 60, "loss": None}
    (one,) = list_runs(tmp_path)
    assert (one.state, one.step, one.fraction) == ("stopped", 60, 0.06)
    with lock(tmp_path / "live"):
        assert list_runs(tmp_path)[0].state == "running"
    assert list_runs(tmp_path)[0].state == "stopped"
    assert list_runs(tmp_path / "nowhere") == []


def test_long_curves_are_thinned() -> None:
    records = [{"step": step} for step in range(7 * MAX_POINTS)]
    kept = thinned(records)
    assert len(kept) == MAX_POINTS
    assert (kept[0], kept[-1]) == (records[0], records[-1])


# --- keys ------------------------------------------------------------------------------------------------------------


def test_with_keys_the_page_is_open_and_its_endpoints_are_not(tmp_path: Path) -> None:
    folders = make_folders(tmp_path)[-1:]
    with serving(folders, tmp_path / "runs", keys=("secret",)) as url:
        with urllib.request.urlopen(f"{url}/") as response:
            assert response.status == 200
        for path in ("/api/models", "/runs", "/rasp/examples"):
            assert request(f"{url}{path}")[0] == 401
            assert request(f"{url}{path}", key="secret")[0] == 200
        assert request(f"{url}/attention", {"model": "reverse", "text": "ab"})[0] == 401
