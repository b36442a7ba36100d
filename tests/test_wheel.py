"""The wheel works without the source tree: it contains recipes, page, grammar and C sources."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
PROGRAM = """
import os
import sys
from importlib import resources
from pathlib import Path

import allyouneed
from allyouneed.kernels import build
from allyouneed.training import load_recipe, recipe_folder

here = Path(sys.argv[1])
assert Path(allyouneed.__file__).is_relative_to(here), allyouneed.__file__
assert recipe_folder().is_relative_to(here), recipe_folder()
names = sorted(path.stem for path in recipe_folder().glob("*.toml"))
for name in names:
    load_recipe(name)
assert len(names) > 40, names
if os.environ["COMPILER"]:
    assert build.library() is not None

from fastapi.testclient import TestClient

from allyouneed.config import parse
from allyouneed.serve.app import create_app
from allyouneed.serve.config import ServeConfig

with TestClient(create_app(parse(ServeConfig, {}), {}), base_url="http://localhost") as client:
    answer = client.get("/")
    assert answer.status_code == 200, answer
    assert "<!doctype html>" in answer.text.lower()
print("works", len(names))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(PROJECT)]
    subprocess.run([*pip, *build], check=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        assert not [name for name in file.namelist() if name.startswith("tests/") or "__pycache__" in name]
    target = folder / "site"
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)], check=True)
    return target


def run(installed: Path, folder: Path, *command: str) -> str:
    from allyouneed.kernels import build

    environment = {**os.environ, "PYTHONPATH": str(installed), "COMPILER": "1" if build.library() else ""}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_installed_package_has_all_its_files(installed: Path, tmp_path: Path) -> None:
    assert run(installed, tmp_path, "-c", PROGRAM, str(installed)).startswith("works")


@pytest.mark.slow
def test_the_installed_program_runs(installed: Path, tmp_path: Path) -> None:
    assert "numbers-en-de" in run(installed, tmp_path, "-m", "allyouneed", "list", "recipes")
    program = tmp_path / "reverse.rasp"
    program.write_text("reverse = aggregate(select(indices, length - indices - 1, ==), tokens);\n")
    assert "c, b, a" in run(installed, tmp_path, "-m", "allyouneed", "rasp", "run", str(program), "--input", "abc")
