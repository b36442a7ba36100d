"""Ragged arrays on disk: round trips, damaged files, padding."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.errors import FolderError
from allyouneed.text.ragged import Ragged, RaggedWriter, padded


@given(rows=st.lists(st.lists(st.integers(0, 65535), max_size=9), max_size=20), cut=st.integers(0, 20))
def test_sequences_survive_a_round_trip(rows, cut) -> None:
    with tempfile.TemporaryDirectory() as name:
        with RaggedWriter(Path(name), "x", "<u2") as writer:
            writer.extend(rows[:cut])
            writer.extend(rows[cut:])
        ragged = Ragged(Path(name), "x", "<u2")
        assert [ragged[i].tolist() for i in range(len(ragged))] == rows
        assert ragged.lengths().tolist() == [len(row) for row in rows]


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    with RaggedWriter(tmp_path, "x", "<u2") as writer:
        writer.extend([[1, 2, 3]])
    (tmp_path / "x.bin").write_bytes(b"\1\0")
    with pytest.raises(FolderError, match="does not match"):
        Ragged(tmp_path, "x", "<u2")


def test_padded_rows() -> None:
    rows = [np.array([5, 6]), np.array([7])]
    assert padded(rows, before=(1,), after=(2,)).tolist() == [[1, 5, 6, 2], [1, 7, 2, 0]]
