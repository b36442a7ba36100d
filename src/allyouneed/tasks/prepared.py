"""Prepared data: tokenised once, found again as long as its sources and settings are the same.

The data is in a sealed folder (storage.py) with a `key.json` that records what it was made from. Another key, or a
folder that is incomplete or damaged, means that the data is prepared again.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from allyouneed.errors import FolderError
from allyouneed.storage import new_folder, verify
from allyouneed.text.lines import BLOCK, open_text, resolve

FORMAT = 1  # of prepared data; increase it when the way data is prepared changes


def source_hashes(names: Iterable[str]) -> dict[str, str]:
    """Return the sha256 of each source file, by the name that the recipe uses."""
    return {name: _sha256(resolve(name)) for name in dict.fromkeys(names)}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_text(path) as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def prepared(folder: Path, key: dict[str, Any], build: Callable[[Path], None]) -> Path:
    """Return the folder that `build` filled for exactly this key: the existing one if it is intact, else a new one."""
    final = folder / "prepared"
    text = json.dumps({"format": FORMAT, **key}, ensure_ascii=False, indent=1, sort_keys=True, default=str)
    try:
        if verify(final).read_text("key.json") == text:
            return final
    except FolderError:
        pass  # absent, incomplete or damaged: it is only a copy of the sources
    with new_folder(final) as temporary:
        build(temporary)
        (temporary / "key.json").write_text(text, encoding="utf-8")
    return final
