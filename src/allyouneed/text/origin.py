"""An imported model as it was: an export gives tokens their ids and names, and writes the same config and files.

Our ids are in another order than theirs, and special tokens have our names. `original.json` of a model folder has the
original id of each of our ids, config.json, the files of the tokenizer, and the settings of an encoder's classifier.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allyouneed.errors import FolderError
from allyouneed.text.specials import UNK

FILE = "original.json"
LARGEST_ORIGIN = 192 << 20  # bytes
MOST_TOKENS = 1 << 24


@dataclass(frozen=True)
class Origin:
    """The config, ids, names and files of the original.

    `theirs` has their token for each of our ids (None: there is none), `hidden` those of our ids that are copies of
    another one and are never generated, `size` the number of their tokens. `classifier` has the settings that a model
    of this architecture has if it classifies texts; {} if it cannot.
    """

    theirs: tuple[int | None, ...]
    hidden: frozenset[int]
    size: int
    config: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    classifier: Mapping[str, Any] = field(default_factory=dict)

    def copies(self) -> list[list[int]]:
        """Return groups of our ids that are one token of theirs."""
        groups: dict[int, list[int]] = {}
        for ours, token in enumerate(self.theirs[: UNK + 1]):
            if token is not None:
                groups.setdefault(token, []).append(ours)
        return [group for group in groups.values() if len(group) > 1]

    def save(self, folder: Path) -> None:
        """Write the file."""
        files = {name: _written(data) for name, data in self.files.items()}
        tree = {"ids": self.theirs, "hidden": sorted(self.hidden), "size": self.size, "config": dict(self.config)}
        text = json.dumps({**tree, "files": files, "classifier": dict(self.classifier)}, ensure_ascii=False)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> "Origin | None":
        """Return the origin of a folder, if it has one. Raise FolderError if the file is not what `save` writes."""
        path = folder / FILE
        if not path.exists():
            return None
        try:
            with path.open("rb") as file:
                tree = json.loads(file.read(LARGEST_ORIGIN).decode("utf-8"))
            theirs, hidden, size, config = (tree[name] for name in ("ids", "hidden", "size", "config"))
            files = {name: _read(name, content) for name, content in tree["files"].items()}
            classifier = tree["classifier"]
            if not isinstance(config, dict) or not isinstance(classifier, dict):
                raise TypeError("config and classifier should be tables")
            if not isinstance(theirs, list) or not isinstance(hidden, list):
                raise TypeError("ids and hidden should be lists")
            found = Origin(tuple(theirs), frozenset(hidden), size, config, files, classifier)
            found.check()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise FolderError(f"{path}: not readable: {error}") from None
        return found

    def check(self) -> None:
        """Raise ValueError unless each of their tokens is exactly one of our ids that is not hidden."""
        if type(self.size) is not int or not 0 < self.size <= MOST_TOKENS:
            raise ValueError(f"size: {self.size!r}")
        if not all(type(ours) is int and 0 <= ours < len(self.theirs) for ours in self.hidden):
            raise ValueError("hidden should contain ids")
        if not all(token is None or (type(token) is int and 0 <= token < self.size) for token in self.theirs):
            raise ValueError(f"ids should be those of {self.size:,} tokens, or null")
        shown = [token for ours, token in enumerate(self.theirs) if ours not in self.hidden and token is not None]
        if sorted(shown) != list(range(self.size)):
            raise ValueError(f"ids should contain each of {self.size:,} tokens once")


def _written(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _read(name: str, content: Mapping[str, str]) -> bytes:
    if Path(name).name != name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not the name of a file")
    ((form, text),) = content.items()
    if form not in ("text", "base64"):
        raise ValueError(f"{name}: should be text or base64")
    return text.encode("utf-8") if form == "text" else base64.b64decode(text, validate=True)
