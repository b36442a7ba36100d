"""Where a folder may be written: never over, into or around what it is made from, nor over anything of another kind.

`storage.new_folder` replaces any folder that has a manifest, as training wants it of its own folders. Here a person
chose the name: it may be that of a model which took days, so only what the same command wrote before is replaced.
"""

import os
from collections.abc import Callable
from pathlib import Path

from allyouneed.errors import ConfigError, FolderError
from allyouneed.folder import KINDS, kind_of
from allyouneed.storage import MANIFEST, compare_listing, read_manifest, writing

OTHER_NAME = "choose another --out"


def require_safe_output(out: Path, source: Path, kind: str, replaceable: Callable[[Path], bool] | None = None) -> None:
    """Refuses an `out` where something would be lost. One of this kind may be there, unless `replaceable` denies it."""
    place, origin = Path(os.path.realpath(out)), Path(os.path.realpath(source))
    if place == origin:
        raise ConfigError(f"--out {out}: is what is read, which would be lost; {OTHER_NAME}")
    if place.is_relative_to(origin):
        raise ConfigError(f"--out {out}: lies inside {source}, which is read; {OTHER_NAME}")
    if origin.is_relative_to(place):
        raise ConfigError(f"--out {out}: holds {source}, which is read and would be lost; {OTHER_NAME}")
    for parent in place.parents:
        if _has_manifest(parent):
            raise ConfigError(f"--out {out}: lies inside {parent}, which must stay as it was written; {OTHER_NAME}")
    with writing(out):
        if out.is_symlink() or not place.is_dir() or not any(place.iterdir()):
            return  # nothing is there, or something that `new_folder` refuses
    found = kind_of(place)
    if found != kind or (replaceable is not None and not replaceable(place)):
        what = KINDS[found][0] if found is not None else "a folder with files of another kind"
        raise ConfigError(f"--out {out}: is {what}, which would be lost; {OTHER_NAME}, or remove it first")
    _refuse_additions(out)


def _refuse_additions(out: Path) -> None:
    """What somebody put into an export since it was written is not ours to remove."""
    sealed, faults = compare_listing(out)
    for fault in faults:
        if fault.name not in sealed.files:
            raise ConfigError(f"--out {out}: {fault.name} was put there by somebody and would be lost; {OTHER_NAME}")


def _has_manifest(folder: Path) -> bool:
    if not (folder / MANIFEST).is_file():
        return False
    try:
        read_manifest(folder)
    except FolderError:  # a manifest of somebody else
        return False
    return True
