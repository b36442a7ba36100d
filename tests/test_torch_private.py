"""The range of torch versions whose private operations are known."""

import re
import tomllib
from pathlib import Path

import pytest
import torch

from allyouneed.errors import DependencyError
from allyouneed.torch_private import SUPPORTED, require_supported

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


@pytest.mark.parametrize("version", ["2.9.0", "2.13.0+cpu", "2.13.1", torch.__version__])
def test_supported_versions_pass(version: str) -> None:
    require_supported(version)


@pytest.mark.parametrize("version", ["2.8.1", "2.14.0", "2.14.0a0+git123", "3.0.0", "1.13.1"])
def test_other_versions_are_refused_in_one_line(version: str) -> None:
    with pytest.raises(DependencyError) as caught:
        require_supported(version)
    message = str(caught.value)
    assert message.startswith(f"torch {version}: ")
    assert "2.9 to 2.13 only" in message
    assert "torch>=2.9,<2.14" in message
    assert "\n" not in message


def test_the_project_states_the_same_range() -> None:
    (oldest, newest), project = SUPPORTED, tomllib.loads(PROJECT.read_text())["project"]
    assert f"torch>={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}" in project["dependencies"]


def test_no_other_module_names_private_operations() -> None:
    for path in (PROJECT.parent / "src").rglob("*.py"):
        if path.name != "torch_private.py":
            assert not re.search(r"torch\.ops\.aten|torch\._[a-z]", path.read_text()), path
