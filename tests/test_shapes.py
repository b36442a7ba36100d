"""The shape checker of conftest.py: it detects wrong shape suffixes, and skips code without any."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from helpers import ShapeChecker

SOURCE = """
def honest(x_BTD, bias_1D, n_BTD=None):
    y_BTD = x_BTD + bias_1D
    broadcast_BTD = y_BTD[:, :1]
    return (lambda z_BDT: z_BDT.sum())(broadcast_BTD.mT)

def permuted(x_BTD):
    y_BTD = x_BTD.mT
    return y_BTD

def flat(x_BTD):
    y_BTD = x_BTD.flatten()
    return y_BTD

def wrong_digit(x_BTD):
    y_BT2 = x_BTD
    return y_BT2

def swallowed(x_BTD):
    try:
        return permuted(x_BTD)
    except AssertionError:
        return None
"""


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    """Return a separate small package, so that its wrong suffixes do not trip the checker that watches this test."""
    path = tmp_path / "liar.py"
    module = ModuleType("liar")
    exec(compile(SOURCE, str(path), "exec"), module.__dict__)
    return module


def watch(package: Path, function: Callable[..., object], *args: Tensor) -> list[str]:
    checker = ShapeChecker(str(package))
    outer = sys.getprofile()
    sys.setprofile(checker.profile)
    try:
        function(*args)
    finally:
        sys.setprofile(outer)
    return checker.wrong_names


def test_correct_shapes_pass(module: ModuleType, tmp_path: Path) -> None:
    assert watch(tmp_path, module.honest, torch.zeros(2, 3, 5), torch.zeros(1, 5)) == []


@pytest.mark.parametrize(
    ("name", "lie"),
    [
        ("permuted", "permuted: y_BTD is (2, 5, 3), but T = 3"),
        ("flat", "flat: y_BTD is (30,), not of 3 axes"),
        ("wrong_digit", "wrong_digit: y_BT2 is (2, 3, 5), but 2 = 2"),
        ("swallowed", "permuted: y_BTD is (2, 5, 3), but T = 3"),
    ],
)
def test_a_wrong_shape_is_detected(module: ModuleType, tmp_path: Path, name: str, lie: str) -> None:
    assert lie in watch(tmp_path, getattr(module, name), torch.zeros(2, 3, 5))


def test_other_packages_are_not_checked(module: ModuleType, tmp_path: Path) -> None:
    assert watch(tmp_path / "elsewhere", module.permuted, torch.zeros(2, 3, 5)) == []


def test_the_tests_themselves_are_checked(request: pytest.FixtureRequest) -> None:
    if any(map(request.config.getoption, ("--no-shapes", "--fast"))):
        pytest.skip("this run does not check shapes")
    assert sys.getprofile().__qualname__.startswith("ShapeChecker.")


@pytest.mark.no_shapes
def test_a_mark_disables_the_checker() -> None:
    assert sys.getprofile() is None
