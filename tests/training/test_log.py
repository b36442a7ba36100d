"""The log: a line is whole or dropped, and a resumed run logs no step twice."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.errors import FolderError, StorageError
from allyouneed.training.log import Log, read_log

VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
RECORDS = st.lists(
    st.dictionaries(st.text(max_size=3).filter(lambda key: key != "step"), VALUES, max_size=3), max_size=6
)


@given(records=RECORDS, torn=st.integers(1, 8), step=st.integers(-1, 7))
def test_any_records_any_tear_any_rewind(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]], torn: int, step: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    numbered = [{**record, "step": number} for number, record in enumerate(records)]
    with Log(path) as log:
        for record in numbered:
            log.append(record)
    assert read_log(path) == numbered

    with path.open("ab") as file:  # killed in the middle of a line
        file.write(b'{"step": 99, "loss": 1.5}'[: torn * 3])
    assert read_log(path) == numbered

    with Log(path) as log:
        log.rewind(step)
        kept = [record for record in numbered if record["step"] <= step]
        assert read_log(path) == kept
        log.append({"step": step + 1})
    assert read_log(path) == [*kept, {"step": step + 1}]


def test_every_line_is_written_immediately(tmp_path: Path) -> None:
    log = Log(tmp_path / "run" / "log.jsonl")
    log.append({"step": 1, "text": "a\nb\rc\u2028d"})
    log.append({"note": "no step"})
    assert read_log(log.path) == [{"step": 1, "text": "a\nb\rc\u2028d"}, {"note": "no step"}]
    log.close()


def test_rewind_keeps_lines_without_a_step_and_unreadable_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"note": 1}\n{"step": 3}\nrubbish\n{"step": 5}\n[1]\n{"step": 4}\n')
    with Log(path) as log:
        log.rewind(4)
    assert path.read_text() == '{"note": 1}\n{"step": 3}\nrubbish\n[1]\n{"step": 4}\n'


def test_damage_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"step": 1}) + "\n{x\n" + json.dumps({"step": 2}) + "\n")
    with pytest.raises(FolderError, match=r"log\.jsonl:2: not a JSON object"):
        read_log(path)
    with pytest.raises(FolderError, match="not readable"):
        read_log(tmp_path / "none")


def test_an_unwritable_log_is_reported(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(StorageError, match="while writing"):
        Log(tmp_path / "log.jsonl")
