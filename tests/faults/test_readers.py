"""A short version of fuzz_readers.py: hypothesis generates the inputs."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from readers import READERS, try_reader

# The ways of `readers.mutated`: the file itself, a garbled good file, a good tree with hostile values.
INPUTS = st.builds(lambda way, data: bytes([way, 0]) + data, st.integers(0, 2), st.binary(max_size=40))


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=150, deadline=None)
@given(data=INPUTS)
def test_a_reader_accepts_or_refuses(name: str, data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = Path(tmp_path_factory.getbasetemp()) / name
    folder.mkdir(exist_ok=True)
    assert try_reader(name, data, folder) in ("accepted", "refused")


@pytest.mark.parametrize("name", [name for name in READERS if name != "recipe"])
def test_good_files_are_accepted(name: str, tmp_path: Path) -> None:
    # An input that selects a good tree and changes nothing in it.
    assert try_reader(name, bytes([2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]), tmp_path) == "accepted"


@pytest.mark.parametrize(
    "found",
    [
        "0ebababb0400baba3d41ba1d",  # the library panics when it decodes with this tokeniser
        "f1f1f152feff1300002900000000000e0e0e0e3f",  # it raises a bare Exception when it encodes with this one
    ],
)
def test_inputs_found_by_fuzzing_are_refused(found: str, tmp_path: Path) -> None:
    assert try_reader("tokenizer", bytes.fromhex(found), tmp_path) == "refused"
