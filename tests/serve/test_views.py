"""The endpoints behind the page: models, maps, programs, runs; what is asked wrongly, and what nobody may read."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from page_models import PROGRAM, ask, make_folders, serving, write_run

from allyouneed.errors import DataError
from allyouneed.serve.program import STARTING, Workers, given_of, zoo
from allyouneed.serve.runs import POINTS, list_runs, read_run, thinned

pytestmark = pytest.mark.no_shapes  # another thread answers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    write_run(folder / "runs" / "one", 100, end=True)
    with serving(make_folders(folder), folder / "runs", max_attention_tokens=40) as url:
        yield url


def test_every_model_says_what_it_is(server: str) -> None:
    status, found = ask(f"{server}/api/models")
    assert status == 200
    models = {one["name"]: one for one in found}
    assert list(models) == ["transformer", "bahdanau", "lstm", "language", "reverse"]
    transformer, lstm, language = models["transformer"], models["lstm"], models["language"]
    assert transformer["architecture"] == "encoder-decoder, softmax, 2+2 layers"
    assert transformer["languages"] == ["en", "de"]
    assert (transformer["path"], transformer["steps"], transformer["maps"]) == (1, 1, True)
    assert (lstm["path"], lstm["steps"], lstm["maps"]) == (1, 32, False)
    assert transformer["example"]
    assert (language["kind"], language["source"], language["target"]) == ("decoder", False, True)
    assert "cat" in language["example"] or "mat" in language["example"]
    assert (models["reverse"]["source"], models["reverse"]["target"]) == (True, False)


@pytest.mark.parametrize("model", ["transformer", "bahdanau", "lstm", "language", "reverse"])
def test_maps_fit_their_tokens(server: str, model: str) -> None:
    text = "abcd" if model == "reverse" else "forty-one"
    status, found = ask(f"{server}/attention", {"model": model, "text": text, "max_tokens": 6})
    assert status == 200
    assert found["maps"]
    for one in found["maps"]:
        for axis, size in ((one["rows"], len(one["weights"][0])), (one["columns"], len(one["weights"][0][0]))):
            assert axis == "other" or len(found[axis]) == size
    assert bool(found["note"]) == (model == "lstm")


def test_a_given_target_is_looked_at(server: str) -> None:
    _, found = ask(f"{server}/attention", {"model": "transformer", "text": "forty-one", "target": "zwei"})
    assert found["target"] == [*"zwei", "end"]
    assert found["answer"] == "zwei"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "nobody", "text": "a"}, 404, "unknown name"),
        ({"model": "transformer", "text": "one " * 60}, 400, "more than 40 tokens"),
        ({"model": "reverse", "text": "xyz"}, 400, "not in the model's vocabulary"),
        ({"model": "reverse", "text": "ab", "target": "ba"}, 400, "classes"),
        ({"model": "transformer"}, 400, "text"),
        ({"model": "transformer", "text": "one", "colour": "red"}, 400, "colour"),
        ({"model": "transformer", "text": 7}, 400, "text"),
        ({"model": "transformer", "text": "one", "max_tokens": -1}, 400, "max_tokens"),
        ({"model": "transformer", "text": "\ud800"}, 400, "text"),
    ],
)
def test_what_is_asked_wrongly_is_said(server: str, body: Any, status: int, words: str) -> None:
    found = ask(f"{server}/attention", body)
    assert found[0] == status, found
    assert words in found[1]["error"]["message"]


def test_the_page_and_its_files_and_nothing_else_is_read(server: str) -> None:
    with urllib.request.urlopen(f"{server}/") as response:
        assert "default-src 'none'; script-src 'self'" in response.headers["Content-Security-Policy"]
        assert b"<script type" in response.read()
    with urllib.request.urlopen(f"{server}/page/main.js") as response:
        assert response.headers["Content-Type"].startswith("text/javascript")
    for path in ("/page/../look.py", "/page/..%2flook.py", "/page/nothing.js", "/page/"):
        assert ask(f"{server}{path}")[0] == 404


def test_no_line_of_the_page_makes_markup_of_text() -> None:
    page = Path(__file__).parents[2] / "src" / "allyouneed" / "serve" / "page"
    for file in page.glob("*.js"):
        text = file.read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser", "http:"):
            assert word not in text, f"{file.name} has {word}"
    assert "style=" not in (page / "index.html").read_text(encoding="utf-8")


# --- programs --------------------------------------------------------------------------------------------------------


def test_a_program_its_values_and_its_model(server: str) -> None:
    status, found = ask(f"{server}/rasp", {"program": PROGRAM, "input": "hello"})
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


def test_what_stands_before_a_mistake_is_shown(server: str) -> None:
    _, found = ask(f"{server}/rasp", {"program": PROGRAM + "\nx = aggregate(flip;", "input": "hey"})
    assert found["output"] == list("yeh")
    assert found["error"]["line"] == 4
    assert found["compiled"] is None


def test_what_does_not_compile_still_runs(server: str) -> None:
    program = 'x = tokens + "";\n' + "x = x + x + tokens;\n" * 4
    _, found = ask(f"{server}/rasp", {"program": program, "input": "abcdefghij" * 3})
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
def test_mistakes_are_answers(server: str, program: str, given: str, words: str) -> None:
    status, found = ask(f"{server}/rasp", {"program": program, "input": given})
    assert status == 200
    assert words in found["error"]["message"]


def test_inputs_are_bounded(server: str) -> None:
    for given in ("", "a" * 65, "a" * 2000):
        status, found = ask(f"{server}/rasp", {"program": PROGRAM, "input": given})
        assert status == 400
        assert "input" in found["error"]["message"]


def test_a_program_that_takes_too_long_is_ended_and_the_next_one_runs() -> None:
    workers = Workers(1, seconds=-STARTING)
    try:
        with pytest.raises(DataError, match="seconds"):
            workers.run({"text": PROGRAM, "given": "ab"})
        workers.seconds = 30.0
        assert workers.run({"text": PROGRAM, "given": "ab"})["output"] == ["b", "a"]
    finally:
        workers.close()


def test_lists_of_numbers_are_inputs_too() -> None:
    assert given_of("[1, 2, 3]") == [1, 2, 3]
    assert given_of("[[1]]") == "[[1]]"
    assert given_of("[}") == "[}"


def test_the_zoo_is_there_with_inputs() -> None:
    found = {one.name: one for one in zoo()}
    assert found["sort"].input == "hello"
    assert found["dyck2"].input == "{(})"
    assert all(one.program and one.about for one in found.values())


# --- runs ------------------------------------------------------------------------------------------------------------


def test_runs_and_their_curves(server: str) -> None:
    status, found = ask(f"{server}/runs")
    assert status == 200
    (one,) = found
    assert (one["name"], one["finished"], one["step"], one["fraction"]) == ("one", True, 100, 1.0)
    status, log = ask(f"{server}/runs/one")
    assert [record["step"] for record in log["steps"]] == list(range(10, 101, 10))
    assert log["end"]["chosen"] == 100
    assert "budget" in log["recipe"]
    _, later = ask(f"{server}/runs/one?after=70")
    assert [record["step"] for record in later["steps"]] == [80, 90, 100]
    for name in ("two", "..", "..%2Fone", "one%2Flog.jsonl", "%00", "."):
        assert ask(f"{server}/runs/{name}")[0] in (200, 404)
        assert "steps" not in (ask(f"{server}/runs/{name}")[1] or {})


def test_links_lead_nowhere(tmp_path: Path) -> None:
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


def test_a_log_that_is_being_written_and_damaged_ones(tmp_path: Path) -> None:
    write_run(tmp_path / "live", 50)
    with (tmp_path / "live" / "log.jsonl").open("a") as log:
        log.write('nonsense\n[1]\n{"kind": "step", "step": 60, "loss": NaN}\n{"kind": "step", "st')
    found = read_run(tmp_path, "live")
    assert found is not None
    assert found.steps[-1] == {"kind": "step", "step": 60, "loss": None}
    (one,) = list_runs(tmp_path)
    assert (one.finished, one.step, one.fraction) == (False, 60, 0.06)
    assert list_runs(tmp_path / "nowhere") == []


def test_long_curves_are_thinned() -> None:
    records = [{"step": step} for step in range(7 * POINTS)]
    kept = thinned(records)
    assert len(kept) == POINTS
    assert (kept[0], kept[-1]) == (records[0], records[-1])


# --- keys ------------------------------------------------------------------------------------------------------------


def test_with_keys_the_page_comes_but_its_questions_need_one(tmp_path: Path) -> None:
    folders = make_folders(tmp_path)[-1:]
    with serving(folders, tmp_path / "runs", keys=("secret",)) as url:
        with urllib.request.urlopen(f"{url}/") as response:
            assert response.status == 200
        for path in ("/api/models", "/runs", "/rasp/examples"):
            assert ask(f"{url}{path}")[0] == 401
            assert ask(f"{url}{path}", key="secret")[0] == 200
        assert ask(f"{url}/attention", {"model": "reverse", "text": "ab"})[0] == 401
