"""Text <-> ids for a finished model: the part of its task that a model folder stores, instead of training data.

Files: `tokenizer.json`; `tokenizer.target.json` if the target has a separate vocabulary; `codec.json` with the rest;
`chat_template.json` of an imported language model that has one; `original.json` of an imported model.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from allyouneed.errors import ConfigError, FolderError
from allyouneed.text.chat_template import ChatTemplate
from allyouneed.text.origin import Origin
from allyouneed.text.specials import BOS, EOS
from allyouneed.text.tokenizer import LARGEST_FILE, Tokenizer

FILES = ("tokenizer.json", "tokenizer.target.json", "codec.json")


@dataclass(frozen=True)
class Codec:
    """The tokenisers of a task. Without a source: a language model. With classes instead of a target: a classifier.

    `per_position`: every position of the source has a class; an answer is the names of all, separated by blanks. A
    decoder reads the source as its text and generates id FIRST_CLASS + c for class c of a position.

    `frame`: the ids before and after a source, if they are not the default ones (`framing`).

    `bos`: whether a text of a language model begins with BOS. Some imported models begin with the text itself.

    `ends`: more ids that end a text of a language model, as EOS does.

    `tags`: the ids that name languages, by name, if the model is multilingual: the source's tag is in the frame, and a
    target begins with the tag of its language. `in_languages` chooses both.

    `prefix`: the ids that every target begins with, after BOS. They are not stored.

    `chat`: the template of conversations, if an imported language model has one.

    `origin`: the ids, names and files of the tokenizer of an imported model, for exports.

    `sentences`: how many sentences a training line usually held. Longer texts are translated in pieces.
    """

    source: Tokenizer | None = None
    target: Tokenizer | None = None
    classes: tuple[str, ...] | None = None
    per_position: bool = False
    frame: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    sentences: int | None = None
    chat: ChatTemplate | None = None
    bos: bool = True
    ends: tuple[int, ...] = ()
    tags: Mapping[str, int] | None = None
    prefix: tuple[int, ...] = ()
    origin: Origin | None = None

    def in_languages(self, source: str | None, target: str | None) -> "Codec":
        """Return the codec for a source and a target language; None keeps the model's own.

        Raise ConfigError for a model without tags, or a name that it does not know.
        """
        if source is None and target is None:
            return self
        if not self.tags:
            raise ConfigError("the model has no language tags, so its languages cannot be chosen")
        for what, name in (("source", source), ("target", target)):
            if name is not None and name not in self.tags:
                near = [tag for tag in sorted(self.tags) if tag[:2] == name[:2]] or sorted(self.tags)
                known = f"{len(self.tags):,} are known, such as {', '.join(near[:5])}"
                raise ConfigError(f"{what} language: unknown name {name[:40]!r}; {known}")
        frame, numbers = self.framing, set(self.tags.values())
        if source is not None:
            tag = self.tags[source]
            before, after = (tuple(tag if one in numbers else one for one in side) for side in frame)
            frame = before, after
        return replace(self, frame=frame, prefix=self.prefix if target is None else (self.tags[target],))

    def in_tuned_languages(self, task: object) -> "Codec":
        """Return the codec of a multilingual model that was tuned on a task (as stored), for the languages of it."""
        names = task.get("tags") if isinstance(task, dict) else None
        if not isinstance(names, list) or len(names) != 2 or not set(map(str, names)) <= (self.tags or {}).keys():
            return self
        return self.in_languages(*names)

    def both(self) -> tuple[Tokenizer, Tokenizer]:
        """Return the tokenisers of a task with a source and a target."""
        assert self.source is not None, "a language model has no source"
        assert self.target is not None, "a classifier has no target"
        return self.source, self.target

    def encode_source(self, text: str) -> list[int]:
        """Return the ids that the encoder reads for a text, with its frame."""
        return self.encode_sources([text])[0]

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids that the encoder reads for each text."""
        assert self.source is not None, "a language model has no source"
        before, after = self.framing
        return [[*before, *ids, *after] for ids in self.source.encode_batch(texts)]

    @property
    def framing(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids before and after a source: EOS after it; for a classifier BOS before it, as a position to pool."""
        if self.frame is not None:
            return self.frame
        return ((BOS,), ()) if self.classes is not None else ((), (EOS,))

    @property
    def target_start(self) -> tuple[int, ...]:
        """The ids that a target begins with in training and scores: the prefix, or what its tokenizer puts there.

        BART is trained to generate `<s>` first: its tokenizer frames sources and targets alike.
        """
        imported = self.origin is not None and self.source is not None and self.target is not None
        return self.framing[0] if imported and not self.tags and not self.prefix else self.prefix

    def text_slice(self, length: int) -> slice:
        """Return the place of the text in a source of `length` ids."""
        before, after = self.framing
        return slice(len(before), length - len(after))

    def encode_prompt(self, text: str = "") -> list[int]:
        """Return the first ids that the decoder reads: BOS, where texts begin with it, and the start of the target."""
        assert self.target is not None, "a classifier has no target"
        ids = self.target.encode(text)
        return [BOS, *ids] if self.bos or not ids else ids

    def split_prompt(self, ids: Sequence[int]) -> tuple[int, list[int]]:
        """Return the first id that the decoder reads, and the others, for the ids of a text."""
        return (BOS, list(ids)) if self.bos or not ids else (ids[0], list(ids[1:]))

    def encode_target(self, text: str) -> list[int]:
        """Return the ids that the decoder should generate for a whole target: the text and EOS."""
        assert self.target is not None, "a classifier has no target"
        return [*self.target.encode(text), EOS]

    def decode_target(self, ids: Sequence[int]) -> str:
        """Return the text of generated ids, up to the first EOS."""
        assert self.target is not None, "a classifier has no target"
        ids = list(ids)
        return self.target.decode(ids[: ids.index(EOS)] if EOS in ids else ids)

    def same_ids_as(self, other: "Codec") -> bool:
        """Return whether every id means the same in both codecs."""
        return self._texts() == other._texts()

    def _texts(self) -> tuple[object, ...]:
        return (*(side and side.to_json() for side in (self.source, self.target)), self.classes)

    def save(self, folder: Path) -> None:
        """Write the files of this codec into a folder (from `storage.new_folder`)."""
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
        tree |= {"each": True} if self.per_position else {}
        tree |= {"frame": self.frame} if self.frame is not None else {}
        tree |= {"sentences": self.sentences} if self.sentences is not None else {}
        tree |= {"bos": False} if not self.bos else {}
        tree |= {"ends": self.ends} if self.ends else {}
        tree |= {"tags": self.tags} if self.tags else {}
        (folder / FILES[2]).write_text(json.dumps(tree, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        if self.chat is not None:
            self.chat.save(folder)
        if self.origin is not None:
            self.origin.save(folder)

    @staticmethod
    def load(folder: Path) -> "Codec":
        """Return the codec of a folder. Raise FolderError if the files are not what `save` writes."""
        path = folder / FILES[2]
        try:
            with path.open("rb") as file:
                tree = json.loads(file.read(LARGEST_FILE).decode("utf-8"))
            has_source, has_target, classes = tree["source"], tree["target"], tree["classes"]
            per_position = tree.get("each", False)
            names = None if classes is None else tuple(classes)
            if not all(isinstance(flag, bool) for flag in (has_source, has_target, per_position)):
                raise TypeError("source, target and each should be true or false")
            if not all(isinstance(name, str) for name in names or ()):
                raise TypeError("classes should be names")
            frame = None if "frame" not in tree else _frame(tree["frame"])
            sentences = tree.get("sentences")
            if sentences is not None and (type(sentences) is not int or sentences < 1):
                raise TypeError("sentences should be a number of at least 1")
            bos, ends = tree.get("bos", True), _ids(tree.get("ends", []), "ends")
            if not isinstance(bos, bool):
                raise TypeError("bos should be true or false")
            tags = _tags(tree.get("tags"))
            if not has_source and (not has_target or names is not None):
                raise ValueError("has neither a source nor a target")
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise FolderError(f"{path}: not readable: {error}") from None
        first, origin = Tokenizer.load(folder / FILES[0]), Origin.load(folder)
        if not has_target:
            return Codec(source=first, classes=names, per_position=per_position, frame=frame, origin=origin)
        if not has_source:
            if any(number >= first.size for number in ends):
                raise FolderError(f"{path}: not readable: ends should be ids of the vocabulary")
            chat = ChatTemplate.load(folder, first)
            return Codec(target=first, chat=chat, bos=bos, ends=ends, origin=origin)
        second = Tokenizer.load(folder / FILES[1]) if (folder / FILES[1]).exists() else first
        if any(number >= min(first.size, second.size) for number in (tags or {}).values()):
            raise FolderError(f"{path}: not readable: tags should be ids of the vocabulary")
        whole = Codec(source=first, target=second, classes=names, frame=frame, sentences=sentences, origin=origin)
        return replace(whole, tags=tags)


def _frame(tree: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if not isinstance(tree, list) or len(tree) != 2:
        raise TypeError("frame should be two lists of ids")
    before, after = (_ids(side, "frame") for side in tree)
    return before, after


def _tags(tree: object) -> dict[str, int] | None:
    if tree is None:
        return None
    if not isinstance(tree, dict) or not all(type(number) is int and number >= 0 for number in tree.values()):
        raise TypeError("tags should be ids by name")
    return tree


def _ids(tree: object, name: str) -> tuple[int, ...]:
    if not isinstance(tree, list) or not all(type(number) is int and number >= 0 for number in tree):
        raise TypeError(f"{name} should hold lists of ids")
    return tuple(tree)
