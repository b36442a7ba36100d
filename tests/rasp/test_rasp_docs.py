"""docs/rasp.md: its conversation is what the REPL says, and its Python runs."""

import re
from pathlib import Path

import pytest
from talk import talk

from allyouneed.rasp import limits
from allyouneed.rasp.interpreter import Interpreter

pytestmark = pytest.mark.no_shapes  # there are no tensors here

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "rasp.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_tour_is_what_the_repl_says():
    shown = "".join(blocks("rasp"))
    lines = [line.removeprefix(">> ") for line in shown.splitlines() if line.startswith(">> ")]
    assert len(lines) > 20
    # From a pipe nothing that is typed is echoed.
    said = talk(*lines).removesuffix(">> \n")
    expected = "".join(">> " if line.startswith(">> ") else f"{line}\n" for line in shown.splitlines())
    assert said == expected


def test_the_python_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    (code,) = blocks("python")
    names: dict[str, object] = {}
    exec(code, names)
    assert "written" in names


def test_the_page_names_what_there_is():
    for path in (ROOT / "recipes" / "rasp").glob("*.rasp"):
        assert re.search(rf"\b{path.stem}\b", PAGE.split("## The zoo")[1])
    for name in Interpreter().base.names:
        assert re.search(rf"\b{name}\b", PAGE) or name.startswith("tokens_")
    for limit in (limits.BITS, limits.TEXT, limits.SIZE, limits.STEPS, limits.CALLS, limits.INPUT):
        assert f"{limit:,}" in PAGE


def test_commands_of_the_page_are_commands():
    commands = re.findall(r"^    allyouneed rasp (\w+)", PAGE, re.MULTILINE)
    from allyouneed.cli.rasp import app

    assert set(commands) <= {command.name for command in app.registered_commands}
