"""Prepared data: tokenised once, found again as long as its sources and settings are the same.

The data is in a sealed folder (storage.py) with a `key.json` that records what it was made from. Another key, or a
folder that is incomplete or damaged, means that the data is prepared again.

Preparation has stages: the tokeniser, then the splits, in parts. Each stage is a sealed folder in `preparing`. After an
interruption, even by SIGKILL, the next attempt continues with the first stage that is missing.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from allyouneed.errors import FolderError, StorageError
from allyouneed.storage import MANIFEST, discard, lock, new_folder, sweep, verify
from allyouneed.tasks.meter import Meter
from allyouneed.text.codec import Codec
from allyouneed.text.lines import BLOCK, open_text, resolve
from allyouneed.text.ragged import concatenate

FORMAT = 1  # of prepared data; increase it when the way data is prepared changes
STAGES = 2  # the format of stages and their results
PREPARING, RESULT = "preparing", "result.json"
PART_ROWS = 1 << 16  # rows of a part
T = TypeVar("T")


def source_hashes(names: Iterable[str]) -> dict[str, str]:
    """Return the sha256 of each source file, by the name that the recipe uses."""
    return file_hashes({name: resolve(name) for name in names})


def file_hashes(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the sha256 of each file."""
    meter = Meter("checking the files", "MiB")
    return {name: _sha256(path, meter) for name, path in files.items()}


def codec_key(codec: Codec | None) -> dict[str, str]:
    """Return what the key of prepared data has for the codec of another model; nothing for None."""
    if codec is None:
        return {}
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(prefix="allyouneed-") as temporary:
        codec.save(Path(temporary))
        for file in sorted(Path(temporary).iterdir()):
            digest.update(f"{file.name} {_sha256(file)}\n".encode())
    return {"codec": digest.hexdigest()}


def _sha256(path: Path, meter: Meter | None = None) -> str:
    digest = hashlib.sha256()
    with open_text(path) as file:
        while block := file.read(BLOCK):
            digest.update(block)
            if meter is not None:
                meter.add()
    return digest.hexdigest()


class Preparation:
    """Prepared data in the making: a folder for its files, and stages that survive an interruption."""

    def __init__(self, folder: Path, stages: Path) -> None:
        self.folder = folder  # what is written here is lost by an interruption
        self._stages, self._done = stages, dict[str, Path]()

    def stage(self, name: str, build: Callable[[Path], T]) -> T:
        """Run `build` in the folder of a stage, and return its result (JSON); or that of an earlier attempt.

        The files of all stages become files of the prepared data. Those that several stages have are concatenated.
        """
        path = self._stages / name
        self._done[name] = path
        try:
            found: T = verify(path).read_json(RESULT)
        except FolderError:
            with new_folder(path) as temporary:
                found = build(temporary)
                (temporary / RESULT).write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
        return found

    def path(self, name: str) -> Path:
        """Return the folder of a finished stage."""
        return self._done[name]

    def parts(
        self,
        name: str,
        rows: Iterable[T],
        write: Callable[[Path, Iterator[T]], Any],
        meter: Meter,
        most: int | None = PART_ROWS,
    ) -> list[Any]:
        """Write rows in parts of at most `most`, each of which is a stage. Return the result of each part."""
        source, results = iter(rows), list[Any]()
        while True:
            part = _Part(islice(source, most), write, meter)
            found = self.stage(f"{name}-{len(results):05}", part.write)
            if not part.rows:  # an earlier attempt wrote it
                meter.skip(sum(1 for _ in islice(source, found["rows"])))
            results.append(found["result"])
            if most is None or found["rows"] < most:
                return results

    def collect(self) -> None:
        """Put the files of all stages into the folder."""
        places: dict[str, list[Path]] = {}
        for stage in self._done.values():
            for file in sorted(stage.iterdir()):
                if file.name not in (MANIFEST, RESULT):
                    places.setdefault(file.name, []).append(file)
        for name, files in places.items():
            if len(files) == 1:
                _link(files[0], self.folder / name)
            else:
                concatenate(files, self.folder / name)


class _Part(Generic[T]):
    """A part of the rows of a split, which are counted when they are read."""

    def __init__(self, source: Iterator[T], write: Callable[[Path, Iterator[T]], Any], meter: Meter) -> None:
        self._source, self._write, self._meter, self.rows = source, write, meter, 0

    def write(self, folder: Path) -> dict[str, Any]:
        """Write all rows into a folder; return their number and the result of writing."""
        result = self._write(folder, self._counted())
        return {"rows": self.rows, "result": result}

    def _counted(self) -> Iterator[T]:
        for row in self._source:
            self.rows += 1
            self._meter.add()
            yield row


def _link(file: Path, name: Path) -> None:
    """Give a file a second name, or copy it if the file system has no hard links."""
    try:
        os.link(file, name)
    except OSError:
        shutil.copyfile(file, name)


def prepared(folder: Path, key: dict[str, Any], build: Callable[[Preparation], None]) -> Path:
    """Return the folder that `build` filled for exactly this key: the existing one if it is intact, else a new one."""
    final, preparing = folder / "prepared", folder / PREPARING
    text = json.dumps({"format": FORMAT, **key}, ensure_ascii=False, indent=1, sort_keys=True, default=str)
    with suppress(FolderError):  # absent, incomplete or damaged: it is only a copy of the sources
        if verify(final).read_text("key.json") == text:
            if preparing.exists():  # killed after the data was complete, unless another process has the lock
                with suppress(StorageError), lock(preparing):
                    discard(preparing)
            return final
    sweep(folder)
    with ExitStack() as held:
        resumed = _open_stages(held, preparing, f"{text}\nstages {STAGES}")
        with new_folder(final) as temporary:
            preparation = Preparation(temporary, preparing if resumed else temporary / PREPARING)
            build(preparation)
            preparation.collect()
            (temporary / "key.json").write_text(text, encoding="utf-8")
            shutil.rmtree(temporary / PREPARING, ignore_errors=True)
        if resumed:
            with suppress(StorageError):
                discard(preparing)  # in one step: a process that waits for the lock sees all of it or nothing
    return final


def _open_stages(held: ExitStack, preparing: Path, text: str) -> bool:
    """Lock the folder of stages, and empty it if they belong to another key. Return False if another process has it."""
    try:
        held.enter_context(lock(preparing))
    except StorageError:
        return False
    key = preparing / "key.json"
    with suppress(OSError, UnicodeDecodeError):
        if key.read_text(encoding="utf-8") == text:
            sweep(preparing)
            return True
    for path in preparing.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
    key.write_text(text, encoding="utf-8")
    return True
