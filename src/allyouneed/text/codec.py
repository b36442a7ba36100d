"""Text <-> ids for a finished model: what a model folder keeps of its task, so that it needs no training data.

Files: `tokenizer.json`; `tokenizer.target.json` if the target has a vocabulary of its own; `codec.json` with the rest.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from allyouneed.errors import FolderError
from allyouneed.text.specials import BOS, EOS
from allyouneed.text.tokenizer import LARGEST_FILE, Tokenizer

FILES = ("tokenizer.json", "tokenizer.target.json", "codec.json")


@dataclass(frozen=True)
class Codec:
    """The tokenisers of a task. No source: a language model. Classes instead of a target: a classifier.

    `each`: every position of the source has a class; an answer is their names with blanks between them. To a decoder
    the source is its text, and class c of a position is said by the id FIRST_CLASS + c.

    `frame`: the ids before and behind a source, where they are not the usual ones (`framing`).
    """

    source: Tokenizer | None = None
    target: Tokenizer | None = None
    classes: tuple[str, ...] | None = None
    each: bool = False
    frame: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def both(self) -> tuple[Tokenizer, Tokenizer]:
        """The tokenisers of a task that has a source and a target."""
        assert self.source is not None, "a language model has no source"
        assert self.target is not None, "a classifier has no target"
        return self.source, self.target

    def encode_source(self, text: str) -> list[int]:
        """What the encoder reads: the text in its frame."""
        return self.encode_sources([text])[0]

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """What the encoder reads, for many texts."""
        assert self.source is not None, "a language model has no source"
        before, behind = self.framing
        return [[*before, *ids, *behind] for ids in self.source.encode_batch(texts)]

    @property
    def framing(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids before and behind a source: EOS behind; for a classifier BOS before, so that it can be pooled."""
        if self.frame is not None:
            return self.frame
        return ((BOS,), ()) if self.classes is not None else ((), (EOS,))

    def inside(self, length: int) -> slice:
        """Where the text stands in a source of `length` ids."""
        before, behind = self.framing
        return slice(len(before), length - len(behind))

    def encode_prompt(self, text: str = "") -> list[int]:
        """What the decoder is given first: BOS and the beginning of the target."""
        assert self.target is not None, "a classifier has no target"
        return [BOS, *self.target.encode(text)]

    def encode_target(self, text: str) -> list[int]:
        """What the decoder should say for a whole target: the text and EOS."""
        assert self.target is not None, "a classifier has no target"
        return [*self.target.encode(text), EOS]

    def decode_target(self, ids: Sequence[int]) -> str:
        """The text of what the decoder said, up to the first EOS."""
        assert self.target is not None, "a classifier has no target"
        ids = list(ids)
        return self.target.decode(ids[: ids.index(EOS)] if EOS in ids else ids)

    def means_the_same(self, other: "Codec") -> bool:
        """Whether every id of one means what it means to the other."""
        return self._texts() == other._texts()

    def _texts(self) -> tuple[object, ...]:
        return (*(side and side.to_json() for side in (self.source, self.target)), self.classes)

    def save(self, folder: Path) -> None:
        """Writes the files of this codec into a folder (of `storage.new_folder`)."""
        shared = self.source is self.target
        first = self.source or self.target
        assert first is not None
        (folder / FILES[0]).write_text(first.to_json(), encoding="utf-8")
        if self.source is not None and self.target is not None and not shared:
            (folder / FILES[1]).write_text(self.target.to_json(), encoding="utf-8")
        tree: dict[str, object] = {
            "source": self.source is not None,
            "target": self.target is not None,
            "classes": self.classes,
        }
        tree |= {"each": True} if self.each else {}
        tree |= {"frame": self.frame} if self.frame is not None else {}
        (folder / FILES[2]).write_text(json.dumps(tree, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> "Codec":
        """The codec of a folder; FolderError if the files are not what `save` writes."""
        path = folder / FILES[2]
        try:
            with path.open("rb") as file:
                tree = json.loads(file.read(LARGEST_FILE).decode("utf-8"))
            has_source, has_target, classes = tree["source"], tree["target"], tree["classes"]
            each = tree.get("each", False)
            names = None if classes is None else tuple(classes)
            if not all(isinstance(flag, bool) for flag in (has_source, has_target, each)):
                raise TypeError("source, target and each should be true or false")
            if not all(isinstance(name, str) for name in names or ()):
                raise TypeError("classes should be names")
            frame = None if "frame" not in tree else _frame(tree["frame"])
            if not has_source and (not has_target or names is not None):
                raise ValueError("has neither a source nor a target")
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise FolderError(f"{path}: not readable: {error}") from None
        first = Tokenizer.load(folder / FILES[0])
        if not has_target:
            return Codec(source=first, classes=names, each=each, frame=frame)
        if not has_source:
            return Codec(target=first)
        second = Tokenizer.load(folder / FILES[1]) if (folder / FILES[1]).exists() else first
        return Codec(source=first, target=second, classes=names, frame=frame)


def _frame(tree: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sides = [tuple(side) for side in tree] if isinstance(tree, list) else []
    if len(sides) != 2 or not all(type(number) is int and number >= 0 for side in sides for number in side):
        raise TypeError("frame should be two lists of ids")
    return sides[0], sides[1]
