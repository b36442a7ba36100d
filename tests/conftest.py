"""For all tests: one thread, a seed for each test, reproducible property tests, and tensor names that cannot lie."""

import sys
import zlib
from collections.abc import Generator
from typing import Any

import hypothesis
import pytest
import torch

from helpers import ShapeChecker

hypothesis.settings.register_profile(
    "tests", derandomize=True, deadline=None, max_examples=25, database=None, print_blob=False
)
hypothesis.settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-shapes", action="store_true", help="do not check that x_BTD has three axes (faster)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "no_shapes: runs without the check of shape suffixes, for speed")
    torch.set_num_threads(1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    torch.manual_seed(zlib.crc32(item.nodeid.encode()))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Runs each test under the shape checker; a lie fails the test, whatever else it found."""
    if pyfuncitem.config.getoption("--no-shapes") or pyfuncitem.get_closest_marker("no_shapes"):
        return (yield)
    checker = ShapeChecker()
    before = sys.getprofile()
    sys.setprofile(checker)
    try:
        return (yield)
    finally:
        sys.setprofile(before)
        if checker.lies:
            raise AssertionError("\n".join(dict.fromkeys(checker.lies)))
