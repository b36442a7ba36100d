"""Checks where a folder may be written: not over, into or around its source, nor over anything of another kind.

`storage.new_folder` replaces any folder that has a manifest, as training needs it for its own folders. Here the user
chose the name, which may be that of a model that took days to train. Only an earlier output of the same command is
replaced.
"""

import os
from collections.abc import Callable
from pathlib import Path

from allyouneed.errors import ConfigError, FolderError
from allyouneed.folder import KINDS, kind_of
from allyouneed.storage import MANIFEST, compare_listing, read_manifest, writing

OTHER_NAME = "choose another --out"


def require_safe_output(out: Path, source: Path, kind: str, replaceable: Callable[[Path], bool] | None = None) -> None:
    """Raise ConfigError if writing `out` would lose data. A `replaceable` folder of this kind may be replaced."""
    place, origin = Path(os.path.realpath(out)), Path(os.path.realpath(source))
    if place == origin:
        raise ConfigError(f"--out {out}: is the folder to read, which would be lost; {OTHER_NAME}")
    if place.is_relative_to(origin):
        raise ConfigError(f"--out {out}: is inside {source}, the folder to read; {OTHER_NAME}")
    if origin.is_relative_to(place):
        raise ConfigError(f"--out {out}: contains {source}, the folder to read, which would be lost; {OTHER_NAME}")
    for parent in place.parents:
        if _has_manifest(parent):
            raise ConfigError(
                f"--out {out}: is inside {parent}, which must not change after it was written; {OTHER_NAME}"
            )
    with writing(out):
        if out.is_symlink() or not place.is_dir() or not any(place.iterdir()):
            return  # empty, or refused by `new_folder`
    found = kind_of(place)
    if found != kind or (replaceable is not None and not replaceable(place)):
        what = KINDS[found][0] if found is not None else "a folder with files of another kind"
        raise ConfigError(f"--out {out}: is {what}, which would be lost; {OTHER_NAME}, or remove it first")
    _refuse_additions(out)


def _refuse_additions(out: Path) -> None:
    """Raise ConfigError if files were added to an export since it was written."""
    sealed, faults = compare_listing(out)
    for fault in faults:
        if fault.name not in sealed.files:
            raise ConfigError(f"--out {out}: {fault.name} was added after the export and would be lost; {OTHER_NAME}")


def _has_manifest(folder: Path) -> bool:
    if not (folder / MANIFEST).is_file():
        return False
    try:
        read_manifest(folder)
    except FolderError:  # another program's manifest
        return False
    return True
