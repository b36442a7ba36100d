"""Vectors as JSON lines, .npy or .parquet, written as they are computed: memory does not grow with their number.

A file appears under its name when it is complete.
"""

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, final

import numpy as np
from torch import Tensor

from allyouneed.errors import ConfigError, DependencyError
from allyouneed.storage import writing

NPY_HEADER = 128  # bytes, enough for any number of vectors


class VectorWriter(ABC):
    """An open output of vectors, all of one length."""

    @abstractmethod
    def extend(self, vectors: Sequence[Tensor]) -> None:
        """Append vectors (D)."""

    @abstractmethod
    def finish(self) -> None:
        """Complete the file."""


@final
class JsonVectors(VectorWriter):
    """A list of numbers on each line."""

    def __init__(self, file: IO[Any]) -> None:
        self._file = file

    def extend(self, vectors: Sequence[Tensor]) -> None:
        self._file.writelines(json.dumps(vector_D.tolist()) + "\n" for vector_D in vectors)
        self._file.flush()

    def finish(self) -> None:
        self._file.flush()


@final
class NpyVectors(VectorWriter):
    """An array (N, D) of float32 for `numpy.load`. Its header, which states N, is written last."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._rows, self._width = file, 0, 0
        file.write(bytes(NPY_HEADER))

    def extend(self, vectors: Sequence[Tensor]) -> None:
        for vector_D in vectors:
            self._file.write(vector_D.cpu().numpy().astype("<f4").tobytes())
            self._width = len(vector_D)
        self._rows += len(vectors)

    def finish(self) -> None:
        shape = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({self._rows}, {self._width}), }}"
        text = shape.ljust(NPY_HEADER - 11) + "\n"
        self._file.seek(0)
        self._file.write(np.lib.format.magic(1, 0) + len(text).to_bytes(2, "little") + text.encode())


@final
class ParquetVectors(VectorWriter):
    """A column `vector` of lists of float32."""

    def __init__(self, file: IO[bytes]) -> None:
        if find_spec("pyarrow") is None:
            raise DependencyError("a .parquet file needs pyarrow: pip install 'allyouneed[arrow]'; or write .npy")
        self._file = file
        self._writer: Any = None

    def extend(self, vectors: Sequence[Tensor]) -> None:
        import pyarrow
        from pyarrow import parquet

        if not vectors:
            return
        rows = np.stack([vector_D.cpu().numpy() for vector_D in vectors]).astype("<f4")
        column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.ravel()), rows.shape[1])
        table: Any = pyarrow.table({"vector": column})
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)

    def finish(self) -> None:
        import pyarrow
        from pyarrow import parquet

        if self._writer is None:  # no text at all
            empty: Any = pyarrow.array([], pyarrow.list_(pyarrow.float32()))
            parquet.write_table(pyarrow.table({"vector": empty}), self._file)
        else:
            self._writer.close()


WRITERS: dict[str, Any] = {".npy": NpyVectors, ".parquet": ParquetVectors}


@contextmanager
def open_vectors(path: Path | None) -> Iterator[VectorWriter]:
    """Open a file for vectors, by its suffix, or standard output. The file appears at the end of the block."""
    if path is None:
        yield JsonVectors(sys.stdout)
        return
    if path.suffix not in {".json", ".jsonl", *WRITERS}:
        raise ConfigError(f"{path}: should end with .jsonl, .npy or .parquet, which is the format of the vectors")
    part = path.with_name(path.name + ".part")
    try:
        with writing(path):
            file = part.open("w", encoding="utf-8") if path.suffix not in WRITERS else part.open("wb")
        with file:
            writer: VectorWriter = WRITERS.get(path.suffix, JsonVectors)(file)
            yield writer
            with writing(path):
                writer.finish()
        with writing(path):
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
