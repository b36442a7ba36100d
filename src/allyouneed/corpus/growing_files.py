"""Text files of a folder that grow step by step, and continue after a kill with what the last whole step left.

NAME.part     while they grow; NAME when all is written
state.json    the size of each file and the caller's counts after the last step
KEY.json      what the files are made from: another key is refused; `finished` has the counts at the end
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allyouneed.errors import ConfigError, FolderError
from allyouneed.storage import write_atomic, writing

STATE, PART = "state.json", ".part"
Counts = dict[str, Any]


def refuse_other_files(folder: Path, key_name: str) -> None:
    """Raise ConfigError if a folder holds something else than such files."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder}: is a file; choose a folder")
    if folder.is_dir() and not (folder / key_name).exists() and any(path.name != "lock" for path in folder.iterdir()):
        raise ConfigError(f"--out {folder}: holds other files; choose another folder")


class GrowingFiles:
    """The files of a folder, opened for their next step."""

    def __init__(self, folder: Path, names: Sequence[str], key_name: str, key: Mapping[str, Any]) -> None:
        """Raise ConfigError if the folder holds files that were made from something else."""
        self.folder, self._names, self._key_file = folder, names, folder / key_name
        self._key: Counts = json.loads(_json(key))
        if self._key_file.exists():
            self._require_same_key()
        else:
            self._write_key({})

    def _require_same_key(self) -> None:
        found = _read(self._key_file)
        if other := [name for part in self._key for name in _differing(part, found.get(part), self._key[part])]:
            raise ConfigError(
                f"{self._key_file}: what is there was made with another {' and another '.join(other)}; choose another "
                f"--out, or remove {self.folder}"
            )

    def _write_key(self, more: Mapping[str, Any]) -> None:
        write_atomic(self._key_file, _json({**self._key, **more}))

    @property
    def finished(self) -> Counts | None:
        """The counts of files that are complete."""
        found: Counts | None = _read(self._key_file).get("finished")
        return found

    def begin(self) -> Counts:
        """Return the counts after the last step ({}: there was none), and remove what an unfinished step wrote."""
        state = _read(self.folder / STATE) if (self.folder / STATE).exists() else {"sizes": {}, "counts": {}}
        for name in self._names:
            part, size = self._part(name), state["sizes"].get(name, 0)
            if not part.exists() and not size:
                part.touch()
            elif not part.exists() and (self.folder / name).exists():  # killed while the files got their names
                part = self.folder / name
            if not part.exists() or part.stat().st_size < size:
                raise FolderError(f"{part}: is not what was written; remove {self.folder} and begin again")
            os.truncate(part, size)
        counts: Counts = state["counts"]
        return counts

    def append(self, texts: Mapping[str, str], counts: Counts) -> None:
        """Add text to files as one step."""
        sizes = {}
        for name in self._names:
            path = self._part(name)
            with writing(path), path.open("ab") as file:
                file.write(texts.get(name, "").encode("utf-8"))
                file.flush()
                os.fsync(file.fileno())
                sizes[name] = file.tell()
        write_atomic(self.folder / STATE, _json({"sizes": sizes, "counts": counts}))

    def finish(self, counts: Counts) -> None:
        """Give the files their names."""
        for name in self._names:
            if self._part(name).exists():
                os.replace(self._part(name), self.folder / name)
        self._write_key({"finished": counts})
        (self.folder / STATE).unlink(missing_ok=True)

    def _part(self, name: str) -> Path:
        return self.folder / f"{name}{PART}"


def _differing(name: str, old: Any, new: Any) -> list[str]:
    """Return the names of values that differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = dict.fromkeys([*old, *new])
        return [found for one in names for found in _differing(f"{name}.{one}", old.get(one), new.get(one))]
    return [name] if old != new else []


def _json(tree: Mapping[str, Any]) -> bytes:
    return (json.dumps(tree, ensure_ascii=False, indent=1) + "\n").encode()


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise TypeError("should be a table")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise FolderError(f"{path}: not readable: {error}") from None
    return found
