"""Imports the SentencePiece models of a folder that has no tokenizer.json.

    source.spm, target.spm, vocab.json   Marian: a model for each side; vocab.json numbers the pieces of both
    spiece.model                         T5: the model numbers its pieces; `<extra_id_99>` to `<extra_id_0>` follow
    tokenizer.model                      Llama: the model numbers its pieces; tokenizer_config.json may add others

A text is split by the package `sentencepiece`. Tokens that are added to a model must be special: they are never
recognised in text.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from allyouneed.errors import FolderError
from allyouneed.interop.hf.files import TOKENIZER, TOKENIZER_CONFIG, ForeignFolder
from allyouneed.interop.hf.vocabulary import Foreign
from allyouneed.text.sentencepieces import SentencePieces, open_processor
from allyouneed.text.specials import UNK
from allyouneed.text.spm_file import CONTROL, LARGEST_SPM, UNKNOWN, USER_DEFINED, SpmModel, parse_spm
from allyouneed.text.tokenizer import LARGEST_FILE, Tokenizer

SOURCE, TARGET, NUMBERS, T5_PIECES, LLAMA_PIECES = (
    "source.spm",
    "target.spm",
    "vocab.json",
    "spiece.model",
    "tokenizer.model",
)
EXTRA_IDS = 100  # of T5, unless tokenizer_config.json states another number
LARGEST_ID = 1 << 24
MOST_DIGITS = 8  # of an id


def has_pieces(foreign: ForeignFolder) -> bool:
    """Return whether the tokenizer of a folder is a SentencePiece model."""
    return foreign.has(SOURCE) or (not foreign.has(TOKENIZER) and (foreign.has(T5_PIECES) or foreign.has(LLAMA_PIECES)))


def read_pieces(foreign: ForeignFolder, settings: Mapping[str, Any]) -> "ForeignPieces":
    """Return the tokenizer of a folder. `settings`: those of tokenizer_config.json."""
    if foreign.has(SOURCE):
        return _marian(foreign, settings)
    name = T5_PIECES if foreign.has(T5_PIECES) else LLAMA_PIECES
    model = _model(foreign, name)
    numbers = dict(enumerate(model.pieces))
    special = {number: (model.pieces[number], True) for number in model.of_type(CONTROL, UNKNOWN)}
    added = _added(foreign, settings)
    if name == T5_PIECES:
        extra = settings.get("extra_ids", EXTRA_IDS)
        if type(extra) is not int or not 0 <= extra <= 1000:
            raise FolderError(f"{foreign.path / TOKENIZER_CONFIG}: extra_ids: {extra!r}; should be from 0 to 1,000")
        first = len(numbers)
        named = set(numbers.values()) | {one for one, _ in added.values()}
        extras = {first + extra - 1 - n: (f"<extra_id_{n}>", True) for n in range(extra)}
        special |= {number: one for number, one in extras.items() if one[0] not in named}
    for number, (content, is_special) in added.items():
        if number in numbers and numbers[number] == content and not is_special:
            continue  # a user-defined symbol, which the model recognises
        if number in numbers and numbers[number] != content:
            raise FolderError(
                f"{foreign.path / TOKENIZER_CONFIG}: added_tokens_decoder: {number} is {content!r}, "
                f"but {numbers[number]!r} in {name}"
            )
        if not is_special:
            raise FolderError(
                f"{foreign.path / TOKENIZER_CONFIG}: added_tokens_decoder: {content!r} is not special; a token that "
                f"is recognised in text needs a {TOKENIZER} (save_pretrained of transformers writes one)"
            )
        special[number] = content, True
    frame = _frame(settings, {content: n for n, (content, _) in special.items()}) if name == LLAMA_PIECES else None
    return ForeignPieces(foreign.path / name, (model, model), numbers, special, frame)


def _marian(foreign: ForeignFolder, settings: Mapping[str, Any]) -> "ForeignPieces":
    where = foreign.path / NUMBERS
    if settings.get("separate_vocabs"):
        raise FolderError(f"{foreign.path / TOKENIZER_CONFIG}: separate_vocabs: source and target should share one")
    table = foreign.read_json(NUMBERS, LARGEST_FILE)
    if not all(name and type(number) is int and 0 <= number < LARGEST_ID for name, number in table.items()):
        raise FolderError(f"{where}: should map pieces to ids from 0 to {LARGEST_ID:,}")
    numbers = {number: name for name, number in table.items()}
    if len(numbers) != len(table):
        raise FolderError(f"{where}: two pieces have the same id")
    models = _model(foreign, SOURCE), _model(foreign, TARGET)
    controls = {model.pieces[number] for model in models for number in model.of_type(CONTROL, UNKNOWN)}
    named = {_content(settings.get(f"{part}_token", f"<{part}>")) for part in ("unk", "pad")}
    named |= {_content(settings.get("eos_token", "</s>"))}
    special = {number: (name, True) for number, name in numbers.items() if name in controls | named}
    return ForeignPieces(foreign.path / SOURCE, models, numbers, special)


def _model(foreign: ForeignFolder, name: str) -> SpmModel:
    return parse_spm(foreign.read(name, LARGEST_SPM), foreign.path / name)


def _added(foreign: ForeignFolder, settings: Mapping[str, Any]) -> dict[int, tuple[str, bool]]:
    """Return the tokens that tokenizer_config.json adds to a model, and whether each is special."""
    tree = settings.get("added_tokens_decoder") or {}
    where = f"{foreign.path / TOKENIZER_CONFIG}: added_tokens_decoder"
    if not isinstance(tree, dict):
        raise FolderError(f"{where}: should map ids to tokens")
    found = {}
    for number, one in tree.items():
        content = one.get("content") if isinstance(one, dict) else None
        known = number.isdecimal() and len(number) <= MOST_DIGITS and int(number) < LARGEST_ID
        if not known or not isinstance(content, str) or not content:
            raise FolderError(f"{where}: {number[:20]}: should be an id with a content")
        found[int(number)] = content, bool(one.get("special"))
    return found


def _content(token: Any) -> str | None:
    """Return the name of a token of tokenizer_config.json."""
    name = token.get("content") if isinstance(token, dict) else token
    return name if isinstance(name, str) else None


def _frame(settings: Mapping[str, Any], special: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Return what a Llama tokenizer adds to a text: nothing, unless tokenizer_config.json states it."""
    sides = []
    for part, default in (("bos", "<s>"), ("eos", "</s>")):
        number = special.get(_content(settings.get(f"{part}_token", default)) or "")
        sides.append([number] if settings.get(f"add_{part}_token") is True and number is not None else [])
    return sides[0], sides[1]


class ForeignPieces(Foreign):
    """SentencePiece models as imported: of the source and of the target."""

    def __init__(
        self,
        where: Path,
        models: tuple[SpmModel, SpmModel],
        names: Mapping[int, str],
        added: Mapping[int, tuple[str, bool]],
        frame: tuple[list[int], list[int]] | None = None,
    ) -> None:
        self.where, self.added = where, added
        self.names = {**names, **{number: name for number, (name, _) in added.items()}}
        self._frame, self._shared = frame or ([], []), models[0] is models[1]
        special = {name for name, _ in added.values()}
        source, target = (
            model.with_controls({n for n in model.of_type(USER_DEFINED) if model.pieces[n] in special})
            for model in models
        )
        self._models = source, source if self._shared else target
        self._numbers = {name: number for number, name in self.names.items()}
        unknown = source.pieces[source.of_type(UNKNOWN)[0]]
        if unknown not in self._numbers:
            raise FolderError(f"{where.parent / NUMBERS}: has no {unknown!r}, which {where.name} gives to unknown text")
        self._unknown = self._numbers[unknown]

    @cached_property
    def _processor(self) -> Any:
        return open_processor(self._models[0].proto(), self.where)

    @cached_property
    def _rest_processor(self) -> Any:
        return open_processor(self._models[0].proto(prefix=False), self.where)

    def encode(self, text: str, controls: bool = False) -> list[int]:
        special = {name: number for number, (name, _) in self.added.items()} if controls else {}
        pattern = "|".join(map(re.escape, sorted(special, key=len, reverse=True)))
        ids: list[int] = []
        for part in re.split(f"({pattern})", text) if special else [text]:
            if part in special:
                ids.append(special[part])
            elif part:
                processor = self._rest_processor if ids else self._processor
                ids += [self._numbers.get(name, self._unknown) for name in processor.encode(part, out_type=str)]
        return ids

    def unknown(self, settings: Mapping[str, Any]) -> int | None:
        return self._unknown

    def frame(self) -> tuple[list[int], list[int]]:
        return self._frame

    def renumbered(self, names: Sequence[str], ours_of: Mapping[int, int]) -> tuple[Tokenizer, Tokenizer]:
        if self._shared:
            (model, _), left_out = self._models, set(self._models[0].of_type(CONTROL))
            ids = [max(UNK, ours_of[n]) if n not in left_out else UNK for n in range(len(model.pieces))]
            made = Tokenizer(SentencePieces(model, names, ids, self.where))
            return made, made
        source, target = (Tokenizer(SentencePieces(model, names, None, self.where)) for model in self._models)
        return source, target
