"""Files and folders that are either complete or absent, and whose changes are noticed.

A folder is written beside its final place, under a name that starts with `.tmp-`:

    files -> manifest.json (sha256 and size of each) -> fsync files and folders -> rename -> fsync parent

A process killed at any instant leaves the old folder or the new one, and perhaps a temporary one that `sweep` removes.
Content that is read back is compared with the manifest first: common tensor formats load a flipped bit silently.

No pickle: tensors are safetensors, everything else is JSON or text. Links and paths that leave the folder are refused.

    disk.py       atomic writes, fsync, errors of the operating system in one line
    folders.py    new folders, replaced as a whole; `sweep`
    manifest.py   the sha256 and size of each file
    sealed.py     reading folders with a manifest
    tensors.py    safetensors
    locks.py      one writer for a run folder
"""

from allyouneed.storage.disk import TEMPORARY, refuse_links, sync_files, write_atomic, writing
from allyouneed.storage.folders import ASIDE, discard, new_folder, refuse_foreign, require_replaceable, sweep
from allyouneed.storage.locks import LockedError, is_locked, lock
from allyouneed.storage.manifest import MANIFEST, Entry, Fault, read_manifest
from allyouneed.storage.sealed import LARGEST_TEXT, Sealed, compare_listing, open_folder, verify
from allyouneed.storage.tensors import LARGEST_TENSORS, LazyTensors, TensorFile, open_tensors, write_tensors

__all__ = [
    "ASIDE",
    "LARGEST_TENSORS",
    "LARGEST_TEXT",
    "MANIFEST",
    "TEMPORARY",
    "Entry",
    "Fault",
    "LazyTensors",
    "LockedError",
    "Sealed",
    "TensorFile",
    "compare_listing",
    "discard",
    "is_locked",
    "lock",
    "new_folder",
    "open_folder",
    "open_tensors",
    "read_manifest",
    "refuse_foreign",
    "refuse_links",
    "require_replaceable",
    "sweep",
    "sync_files",
    "verify",
    "write_atomic",
    "write_tensors",
    "writing",
]
