"""Prepared data: tokenised once, found again as long as its sources and settings are the same.

The data is in a sealed folder (storage.py) with a `key.json` that records what it was made from. Another key, or a
folder that is incomplete or damaged, means that the data is prepared again.

Preparation has stages: the tokeniser, then the splits, in parts. Each stage is a sealed folder in `preparing`. After an
interruption, even by SIGKILL, the next attempt continues with the first stage that is missing. Several processes can
prepare the same data together (preparation.py).
"""

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from allyouneed.errors import ConfigError, FolderError, StorageError
from allyouneed.storage import (
    LockedError,
    discard,
    is_locked,
    lock,
    new_folder,
    open_folder,
    sweep,
    verify,
    write_atomic,
)
from allyouneed.tasks.meter import Meter, report
from allyouneed.tasks.preparation import WAIT, LeaderGoneError, Preparation, link
from allyouneed.text.codec import Codec
from allyouneed.text.lines import BLOCK, open_text, resolve

FORMAT = 1  # of prepared data; increase it when the way data is prepared changes
STAGES = 3  # the format of stages and their results
PREPARING, KEY = "preparing", "key.json"
LOOKS = 5  # at the key of another process that has just taken the lock

_reused: ContextVar[tuple[Path, bool] | None] = ContextVar("prepared data to reuse", default=None)


def source_hashes(names: Iterable[str]) -> dict[str, str]:
    """Return the sha256 of each source file, by the name that the recipe uses."""
    return file_hashes({name: resolve(name) for name in names})


def file_hashes(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the sha256 of each file."""
    meter = Meter("checking the files", "MiB")
    return {name: _sha256(path, meter) for name, path in files.items()}


def codec_key(codec: Codec | None) -> dict[str, str]:
    """Return what the key of prepared data has for the codec of another model; nothing for None.

    The number of sentences has no part in it: preparation counts them (tasks/pair_files.py).
    """
    if codec is None:
        return {}
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(prefix="allyouneed-") as temporary:
        replace(codec, sentences=None).save(Path(temporary))
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


@contextmanager
def reusing(folder: Path, required: bool = True) -> Iterator[None]:
    """Take what is prepared in this block from another folder, if its key is the same; no file is written twice.

    `required`: raise ConfigError if it is not there, or has another key.
    """
    token = _reused.set((folder, required))
    try:
        yield
    finally:
        _reused.reset(token)


def prepared(folder: Path, key: dict[str, Any], build: Callable[[Preparation], None]) -> Path:
    """Return the folder that `build` filled for exactly this key: the existing one if it is intact, else a new one.

    Processes that prepare the same data in the same folder at the same time share the work.
    """
    final, preparing = folder / "prepared", folder / PREPARING
    text = json.dumps({"format": FORMAT, **key}, ensure_ascii=False, indent=1, sort_keys=True, default=str)
    while not _is_intact(final, text):
        sweep(folder)
        if _is_reused(final, text):
            return final
        try:
            with lock(preparing):
                _lead(final, preparing, text, build)
            return final
        except LockedError:
            if _is_led_for(preparing, text):
                _help(final, preparing, text, build)
            elif is_locked(preparing):  # another process prepares other data
                _fill(final, None, text, build)
                return final
    if preparing.exists():  # killed after the data was complete, unless another process has the lock
        with suppress(StorageError), lock(preparing):
            discard(preparing)
    return final


def _is_intact(final: Path, text: str) -> bool:
    """Return whether prepared data has this key, and no byte has changed."""
    try:
        return open_folder(final).read_text(KEY) == text and bool(verify(final))
    except FolderError:  # absent, incomplete or damaged: it is only a copy of the sources
        return False


def _is_reused(final: Path, text: str) -> bool:
    """Give the files of prepared data that are to be reused a second name here. Return whether there are any."""
    folder, required = _reused.get() or (None, False)
    if folder is None:
        return False
    found = folder / final.name
    if not _is_intact(found, text):
        if required:
            raise ConfigError(f"{found}: {_why_not(found, text)}; prepare it with this recipe: allyouneed data prepare")
        return False
    with new_folder(final) as temporary:
        for name in open_folder(found).files:
            link(found / name, temporary / name)
    return True


def _why_not(found: Path, text: str) -> str:
    """Describe why prepared data cannot be reused."""
    try:
        ours, theirs = json.loads(text), verify(found).read_json(KEY)
    except FolderError as error:
        return str(error).removeprefix(f"{found}: ")
    names = sorted(name for name in ours | theirs if ours.get(name) != theirs.get(name))
    return f"was prepared from other data, or with other settings: its {', '.join(names)} differ"


def _lead(final: Path, preparing: Path, text: str, build: Callable[[Preparation], None]) -> None:
    """Prepare with the lock of the folder of stages, which is emptied if they belong to another key."""
    if not _is_intact(final, text):  # another process may have made it since
        if not _has_stages(preparing, text):
            (preparing / KEY).unlink(missing_ok=True)
            for path in preparing.iterdir():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
            write_atomic(preparing / KEY, _stage_text(text).encode())
        sweep(preparing)
        _fill(final, preparing, text, build)
    with suppress(StorageError):
        discard(preparing)  # in one step: a process that waits for the lock sees all of it or nothing


def _fill(final: Path, preparing: Path | None, text: str, build: Callable[[Preparation], None]) -> None:
    """Prepare in stages of an own folder, or of `preparing`."""
    with new_folder(final) as temporary:
        own = temporary / PREPARING
        preparation = Preparation(temporary, preparing or own)
        build(preparation)
        preparation.collect()
        (temporary / KEY).write_text(text, encoding="utf-8")
        shutil.rmtree(own, ignore_errors=True)


def _help(final: Path, preparing: Path, text: str, build: Callable[[Preparation], None]) -> None:
    """Make stages for the process that leads, and wait until it has joined them, or has ended."""
    try:
        with tempfile.TemporaryDirectory(prefix="allyouneed-") as temporary:
            build(Preparation(Path(temporary), preparing, leads=False))
    except LeaderGoneError:
        return
    except (FolderError, StorageError):
        if not _is_intact(final, text):  # otherwise the stages were removed because all are joined
            raise
    while is_locked(preparing):
        report("waiting for the process that joins the parts")
        time.sleep(WAIT)


def _is_led_for(preparing: Path, text: str) -> bool:
    """Return whether a process that prepares the same data holds the lock. Wait until that is known."""
    for _ in range(LOOKS):
        if _has_stages(preparing, text):
            return True
        time.sleep(WAIT)  # it may be about to write the key
    return False


def _has_stages(preparing: Path, text: str) -> bool:
    """Return whether the stages in a folder belong to this key."""
    try:
        return (preparing / KEY).read_text(encoding="utf-8") == _stage_text(text)
    except (OSError, UnicodeDecodeError):
        return False


def _stage_text(text: str) -> str:
    return f"{text}\nstages {STAGES}"
