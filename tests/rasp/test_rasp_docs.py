"""docs/rasp.md and the README: their transcripts match the REPL, and their Python and commands run."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from repl_transcript import transcript

from allyouneed.rasp import limits
from allyouneed.rasp.interpreter import Interpreter
from allyouneed.rasp.values import Procedure

pytestmark = pytest.mark.no_shapes  # no tensors here

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "rasp.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@pytest.mark.parametrize(("page", "fewest"), [(PAGE, 20), (README, 4)], ids=["docs", "readme"])
def test_transcripts_match_the_repl(page: str, fewest: int):
    shown = "".join(blocks("rasp", page))
    lines = [line.removeprefix(">> ") for line in shown.splitlines() if line.startswith(">> ")]
    assert len(lines) >= fewest
    # Input from a pipe is not echoed.
    printed = transcript(*lines).removesuffix(">> \n")
    expected = "".join(">> " if line.startswith(">> ") else f"{line}\n" for line in shown.splitlines())
    assert printed == expected


def test_the_python_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    (code,) = blocks("python")
    names: dict[str, object] = {}
    exec(code, names)
    assert "written" in names


def test_the_commands_of_the_readme_run(tmp_path):
    """Run in order, in one folder, as a user would type them."""
    (block,) = blocks("sh", README)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    printed = {}
    for line in block.splitlines():
        command = line.replace("allyouneed ", f"{sys.executable} -m allyouneed ", 1)
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        printed[line] = done.stdout
    answers = list(printed.values())
    assert answers[0] == "sorted = [e, h, l, l, o] (strings)\n"
    assert "1,296 parameters" in answers[1]
    assert answers[2] == "a d c b a\n"
    assert answers[3].startswith("exact = 1.0000")
    assert "<svg" in (tmp_path / "sort.svg").read_text(encoding="utf-8")


def test_the_page_names_all_programs_operations_and_limits():
    for path in (ROOT / "recipes" / "rasp").glob("*.rasp"):
        assert re.search(rf"\b{path.stem}\b", PAGE.split("## The zoo")[1])
    for name in Interpreter().base.names:
        assert re.search(rf"\b{name}\b", PAGE) or name.startswith("tokens_")
    for limit in (limits.BITS, limits.TEXT, limits.SIZE, limits.STEPS, limits.CALLS, limits.INPUT):
        assert f"{limit:,}" in PAGE


def test_the_library_matches_the_page():
    """Functions are listed with their parameters, other names without."""
    library = Interpreter().base.names
    own = {name: value for name, value in library.items() if name not in ("True", "False", "indices")}
    expected = {
        f"{name}({', '.join(value.parameters)})" if isinstance(value, Procedure) else name
        for name, value in own.items()
        if not name.startswith("tokens")
    }
    table = PAGE.split("**The library**")[1].split("**Limits**")[0]
    assert set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)) == expected


def test_the_import_contract_covers_the_whole_language():
    """The contract covers every module of rasp, the compiler excepted, and every other module of the package."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (one for one in settings["tool"]["importlinter"]["contracts"] if one["type"] == "forbidden")
    assert contract["source_modules"] == ["allyouneed.rasp"]
    assert all(ignored.startswith("allyouneed.rasp.compiler.** -> ") for ignored in contract["ignore_imports"])
    package = ROOT / "src" / "allyouneed"
    beside = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    others = {f"allyouneed.{name}" for name in beside - {"__init__", "__main__", "errors", "rasp"}}
    assert set(contract["forbidden_modules"]) >= others


def test_commands_of_the_page_exist():
    commands = re.findall(r"^    allyouneed rasp (\w+)", PAGE, re.MULTILINE)
    from allyouneed.cli.rasp import app

    assert set(commands) <= {command.name for command in app.registered_commands}
