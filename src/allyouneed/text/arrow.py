"""Parquet and Arrow files, read by pyarrow in a child process: `python -m allyouneed.text.arrow_process`.

A file can state any number of values, any offset and any size of a compressed page. The child has a limit on its
memory, so a file that lies ends the child and not this process, and the message names the file. One child reads all
files of a corpus.
"""

import json
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from allyouneed.errors import DataError, DependencyError
from allyouneed.text.records import Row

MEMORY = 640 << 20  # bytes of data that the child may allocate
HEADER = struct.Struct("<BI")  # what follows, and its number of bytes
FILE, ROWS, ERROR, DONE = range(4)  # an index of a file; rows as JSON; a message; the end
STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"  # of a folder of Hugging Face `datasets`
LARGEST_STATE = 1 << 20  # bytes


def dataset_files(folder: Path) -> list[Path]:
    """Return the Arrow files of a folder that `datasets` has saved. Raise DataError if it is not one."""
    if (folder / SPLITS).is_file():
        splits = sorted(path.name for path in folder.iterdir() if path.is_dir())
        raise DataError(f"{folder}: has several splits; give one of them: {', '.join(splits[:10])}")
    if (folder / STATE).is_file():
        return [folder / name for name in _state_names(folder / STATE)]
    found = sorted(folder.glob("*.arrow"))
    if not found or not (folder / INFO).is_file():
        raise DataError(
            f"{folder}: is a folder without {STATE} of `datasets`; give its files by a pattern, such as "
            f"{folder}/*.parquet"
        )
    return found


def _state_names(path: Path) -> list[str]:
    """Return the names of the data files that a state lists."""
    try:
        if path.stat().st_size > LARGEST_STATE:
            raise ValueError("it is too large")
        state = json.loads(path.read_text(encoding="utf-8"))
        names = [one["filename"] for one in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: does not list data files ({error}); save the dataset again") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise DataError(f"{path}: {name!r} is not the name of a file in this folder; save the dataset again")
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise DataError(f"{path}: selects rows by an index; save the result of flatten_indices() instead")
    if not names:
        raise DataError(f"{path}: lists no data files; the dataset is empty")
    return names


def arrow_rows(paths: Sequence[Path], sides: Sequence[str], fields: Sequence[str]) -> Iterator[Row]:
    """Yield columns of Parquet or Arrow files, as texts. `a.b` is the field b of the structures in column a."""
    for path in paths:
        if not path.is_file():
            raise DataError(f"{path}: no such file")
    if find_spec("pyarrow") is None:
        raise DependencyError(
            f"{paths[0]}: is read with pyarrow, which is not installed: pip install 'allyouneed[arrow]'"
        )
    settings = {"paths": [str(path) for path in paths], "sides": list(sides), "fields": list(fields)}
    command = [sys.executable, "-m", "allyouneed.text.arrow_process", json.dumps(settings)]
    # In a process group of its own: Ctrl-C reaches the parent alone. The child ends when its output closes.
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0) as child:
        assert child.stdout is not None
        try:
            yield from _received(child.stdout, child, paths)
        finally:
            child.kill()


def _received(stdout: IO[bytes], child: "subprocess.Popen[bytes]", paths: Sequence[Path]) -> Iterator[Row]:
    path = paths[0]
    while True:
        header = stdout.read(HEADER.size)
        if len(header) < HEADER.size:
            raise DataError(f"{path}: {_ending(child)}; the file is damaged, or has values that are too large")
        kind, size = HEADER.unpack(header)
        body = stdout.read(size)
        if kind == DONE:
            return
        if kind == ERROR:
            raise DataError(body.decode("utf-8", "replace"))
        if len(body) < size:
            continue  # the child ended; the next header is missing, too
        if kind == FILE:
            path = paths[int(body)]
        else:
            yield from map(tuple, json.loads(body))


def _ending(child: "subprocess.Popen[bytes]") -> str:
    """Return how the child ended."""
    status = child.wait()
    name = f"status {status}"
    if status < 0:
        with suppress(ValueError):
            name = signal.Signals(-status).name
    return f"the process that reads it ended with {name} (its limit is {MEMORY >> 20:,} MiB)"
