"""`allyouneed rasp repl` and `allyouneed rasp run`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from allyouneed.cli import run

pytestmark = pytest.mark.no_shapes  # no tensors here

ZOO = Path(__file__).parents[2] / "recipes" / "rasp"


@pytest.fixture
def rasp(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        status = run(["rasp", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_run_prints_every_public_name(rasp, tmp_path):
    text = 'double = indices * 2; _hidden = 1; same = select(tokens, tokens, ==); number = 3; load "other";'
    (tmp_path / "a.rasp").write_text(text)
    (tmp_path / "other.rasp").write_text("one = indices + 1;")
    assert rasp("run", "a.rasp", "--input", "aa") == (
        0,
        "double = [0, 2] (ints)\none = [1, 2] (ints)\nsame =\n \t\t\t     a a\n \t\t\t a | 1 1\n \t\t\t a | 1 1\n",
        "",
    )
    assert rasp("run", "a.rasp", "--input", "aa", "--name", "one")[1] == "one = [1, 2] (ints)\n"
    status, out, _ = rasp("run", "a.rasp", "--values", '["x", 2, "x"]', "--json")
    assert status == 0
    assert json.loads(out) == {
        "double": [0, 2, 4],
        "one": [1, 2, 3],
        "same": [[True, False, True], [False, True, False], [True, False, True]],
    }


def test_run_succeeds_on_programs_that_fail_on_the_default_example(rasp):
    assert rasp("run", str(ZOO / "long_addition.rasp"), "--input", "95+7")[1] == "long_addition = [0, 1, 0, 2] (ints)\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.rasp"], "use either --input TEXT or --values LIST"),
        (["a.rasp", "--input", "a", "--values", "[1]"], "use either --input TEXT or --values LIST"),
        (["a.rasp", "--values", "{"], "--values: not JSON"),
        (["a.rasp", "--values", "3"], "--values: not a JSON list"),
        (["a.rasp", "--values", "[" * 100_000], "--values: not JSON"),
        (
            ["a.rasp", "--values", "[1, [1]]"],
            "--values: element 1 is a list; should be a number, a string, true or false",
        ),
        (["a.rasp", "--values", "[null]"], "--values: element 0 is null; should be"),
        (["a.rasp", "--values", '[{"a": 1}]'], "--values: element 0 is an object; should be"),
        (["a.rasp", "--values", "[NaN]"], "--values: not JSON: NaN"),
        (["a.rasp", "--input", ""], "expect non-empty iterables"),
        (["a.rasp", "--input", "a" * 10_001], "at most 10000 are computed"),
        (["a.rasp", "--input", "a", "--name", "y"], "a: no s-op 'y'; it defines x"),
        (["nix.rasp", "--input", "a"], "could not find file: nix.rasp"),
        (["b.rasp", "--input", "a"], "b.rasp:2: Error: Undefined variable: z"),
    ],
)
def test_run_reports_errors(rasp, tmp_path, arguments, words):
    (tmp_path / "a.rasp").write_text("x = tokens_asis;")
    (tmp_path / "b.rasp").write_text("x = 1;\ny = z;")
    status, out, err = rasp("run", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert err.count("\n") == 1


def test_json_output_is_valid(rasp, tmp_path):
    (tmp_path / "a.rasp").write_text(f"x = indices * 1{'0' * 308}.0 * 10; y = x - x; z = [1];")
    status, out, _ = rasp("run", "a.rasp", "--input", "ab", "--json")
    assert status == 0
    assert json.loads(out, parse_constant=pytest.fail) == {"x": [0.0, None], "y": [0.0, None]}


def test_a_file_is_loaded_with_or_without_its_suffix(rasp, tmp_path):
    (tmp_path / "one.rasp").write_text("one = indices + 1;")
    for name in ("one", "one.rasp"):
        (tmp_path / "a.rasp").write_text(f'load "{name}"; two = one + 1;')
        assert rasp("run", "a.rasp", "--input", "a", "--name", "two")[1] == "two = [2] (ints)\n"


def test_run_prints_the_paths_of_pictures(rasp, tmp_path):
    (tmp_path / "a.rasp").write_text('x = indices; draw(x, "ab");')
    assert rasp("run", "a.rasp", "--input", "a") == (0, "x = [0] (ints)\n", "picture: comp_flows/x(ab).svg\n")


@pytest.mark.parametrize(("compat", "line"), [([], "\t picture: comp_flows/tokens(ab).svg\n"), (["--compat"], "")])
def test_the_repl_prints_the_paths_of_pictures(tmp_path, compat, line):
    done = subprocess.run(
        [sys.executable, "-m", "allyouneed", "rasp", "repl", *compat],
        input='draw(tokens, "ab");\n',
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout.split(">> ")[1] == f"{line}\t =  [a, b] (strings)\n"


def test_the_repl_from_a_pipe():
    done = subprocess.run(
        [sys.executable, "-m", "allyouneed", "rasp", "repl", "--compat"],
        input="a = 1; b = 2;\nlength;\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == (
        "RASP 0.1\nrunning example is: hello\n>> something went wrong: \n>>      s-op: length\n"
        ' \t Example: length("hello") = [5]*5 (ints)\n>> \n'
    )


def test_rasp_does_not_import_torch():
    code = (
        "import sys\nfrom allyouneed.cli import run\n"
        "codes = [run(['rasp', *words]) for words in ([], ['--help'], ['repl', '--help'], ['run', '--help'])]\n"
        "print(codes, sorted({'torch', 'numpy', 'rich', 'lark', 'matplotlib'} & set(sys.modules)), file=sys.stderr)\n"
        f"run(['rasp', 'run', {str(ZOO / 'reverse.rasp')!r}, '--input', 'abc'])\n"
        "print(sorted({'torch', 'numpy', 'rich', 'matplotlib'} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "[0, 0, 0, 0] []\n[]\n"
    assert done.stdout.endswith("reverse = [c, b, a] (strings)\n")
