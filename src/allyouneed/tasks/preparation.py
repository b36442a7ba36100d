"""The stages of a preparation, which several processes can make together.

All processes run the same steps with the same folder of stages. The one that holds the lock of this folder leads: it
makes what cannot be divided, such as the tokeniser, and joins everything in the end. The others help: they wait for
what the leader makes. All of them make the parts of splits, each one the parts that no other process has claimed.

    STAGE/             a sealed folder: complete or absent
    claims/STAGE/      the lock of a part, held by the process that makes it; it is free when that process has ended

A part has the same bytes, in whichever process it is made. So claims save work, and nothing else depends on them.
"""

import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from allyouneed.errors import FolderError
from allyouneed.storage import MANIFEST, LockedError, is_locked, lock, new_folder, open_folder, verify
from allyouneed.tasks.meter import Meter, report
from allyouneed.text.ragged import concatenate

RESULT, CLAIMS = "result.json", "claims"
PART_ROWS = 1 << 16  # rows of a part
WAIT = 0.2  # seconds between two looks at what another process makes
T = TypeVar("T")
Write = Callable[[Path, Iterator[T]], Any]  # the rows of a part into a folder; returns a result (JSON)


class LeaderGoneError(Exception):
    """The process that leads has ended. The stage that this process waits for may have been made before."""


class Preparation:
    """Prepared data in the making: a folder for its files, and stages that survive an interruption."""

    def __init__(self, folder: Path, stages: Path, leads: bool = True) -> None:
        self.folder = folder  # what is written here is lost by an interruption
        self._stages, self._leads, self._done = stages, leads, dict[str, Path]()
        self._earlier = {path.name for path in stages.glob("*")}

    def stage(self, name: str, build: Callable[[Path], T]) -> T:
        """Run `build` in the folder of a stage, and return its result (JSON); or that of an earlier attempt.

        The files of all stages become files of the prepared data. Those that several stages have are concatenated.
        """
        path = self._done[name] = self._stages / name
        try:
            found: T = self._read(path)
        except FolderError:
            found = self._make(path, build) if self._leads else self._await(path)
        return found

    def path(self, name: str) -> Path:
        """Return the folder of a finished stage."""
        return self._done[name]

    def parts(
        self,
        name: str,
        rows: Callable[[], Iterable[T]],
        write: Write[T],
        meter: Meter,
        most: int | None = PART_ROWS,
    ) -> list[Any]:
        """Write rows in parts of at most `most`, each of which is a stage. Return the result of each part.

        `rows` returns all rows. It is called again if another process did not finish a part that it had claimed.
        """
        split = _Split(name, rows, write, meter, most)
        made: dict[int, Any] = {}
        total = self._first_pass(split, made)
        while left := [number for number in range(total) if number not in made]:
            while all(is_locked(self._claim(split, number)) for number in left):
                report(f"{name}: waiting for parts that other processes make: {len(left)}")
                time.sleep(WAIT)
            source = _Source(split.rows())
            for number in left:
                self._take(split, number, source, made)
        self._done |= {split.part(number): self._stages / split.part(number) for number in range(total)}
        return [made[number]["result"] for number in range(total)]

    def _first_pass(self, split: "_Split[T]", made: dict[int, Any]) -> int:
        """Make each part that is missing and not claimed. Return the number of all parts."""
        source, number = _Source(split.rows()), 0
        while True:
            here = self._take(split, number, source, made)
            if split.most is None:
                return 1
            length = made[number]["rows"] if number in made else source.length(number * split.most, split.most)
            if not here:
                (split.meter.skip if split.part(number) in self._earlier else split.meter.add)(length)
            number += 1
            if length < split.most:
                return number

    def _take(self, split: "_Split[T]", number: int, source: "_Source[T]", made: dict[int, Any]) -> bool:
        """Add a part to `made`, unless another process is making it now. Return whether it was made here."""
        path, claim = self._stages / split.part(number), self._claim(split, number)
        start = number * (split.most or 0)

        def write(folder: Path) -> dict[str, Any]:
            result = split.write(folder, source.part(start, split.most, split.meter))
            return {"rows": source.at - start, "result": result}

        with suppress(FolderError):
            made[number] = self._read(path)
            return False
        if not self._leads and not is_locked(self._stages):
            raise LeaderGoneError  # or all parts are joined, and the stages are removed
        if is_locked(claim):
            return False
        with suppress(LockedError), lock(claim):
            with suppress(FolderError):  # another process may have made it since
                made[number] = self._read(path)
                return False
            made[number] = self._make(path, write)
            return True
        return False

    def collect(self) -> None:
        """Put the files of all stages into the folder."""
        places: dict[str, list[Path]] = {}
        for stage in self._done.values():
            for file in sorted(stage.iterdir()):
                if file.name not in (MANIFEST, RESULT):
                    places.setdefault(file.name, []).append(file)
        for name, files in places.items():
            if len(files) == 1:
                link(files[0], self.folder / name)
            else:
                concatenate(files, self.folder / name)

    def _claim(self, split: "_Split[T]", number: int) -> Path:
        return self._stages / CLAIMS / split.part(number)

    def _read(self, path: Path) -> Any:
        """Return the result of a stage. Raise FolderError if it is not there. The leader compares all bytes."""
        return (verify(path) if self._leads else open_folder(path)).read_json(RESULT)

    def _make(self, path: Path, build: Callable[[Path], Any]) -> Any:
        with new_folder(path) as temporary:
            found = build(temporary)
            (temporary / RESULT).write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
        return found

    def _await(self, path: Path) -> Any:
        """Return the result of a stage that the leader makes."""
        while is_locked(self._stages):
            with suppress(FolderError):
                return self._read(path)
            report(f"waiting for what another process makes: {path.name}")
            time.sleep(WAIT)
        raise LeaderGoneError


@dataclass(frozen=True)
class _Split(Generic[T]):
    name: str
    rows: Callable[[], Iterable[T]]
    write: Write[T]
    meter: Meter
    most: int | None

    def part(self, number: int) -> str:
        return f"{self.name}-{number:05}"


class _Source(Generic[T]):
    """The rows of a split, read once and only as far as needed."""

    def __init__(self, rows: Iterable[T]) -> None:
        self._rows, self.at = iter(rows), 0

    def part(self, start: int, most: int | None, meter: Meter) -> Iterator[T]:
        """Yield the rows of a part, and count them."""
        self._pass_by(start - self.at)
        for row in islice(self._rows, most):
            self.at += 1
            meter.add()
            yield row

    def length(self, start: int, most: int) -> int:
        """Return the number of rows of a part, which is not read here."""
        return self._pass_by(start + most - self.at) - start

    def _pass_by(self, rows: int) -> int:
        """Pass by rows; return the place after them."""
        last = deque(enumerate(islice(self._rows, rows), 1), maxlen=1)
        self.at += last[0][0] if last else 0
        return self.at


def link(file: Path, name: Path) -> None:
    """Give a file a second name, or copy it if the file system has no hard links."""
    try:
        os.link(file, name)
    except OSError:
        shutil.copyfile(file, name)
