"""A SentencePiece model as a part of `Tokenizer`: the package `sentencepiece` splits texts, a table renumbers pieces.

The package is used instead of a conversion to the tokenizers library because the conversion is not exact: of 20,000
random texts of letters with accents, ligatures, emoji and control characters, thousands get other tokens (transformers'
conversion applies normal forms to graphemes instead of the longest match). The package is also faster.

The file is JSON:

    vocab   the name of each id: a piece, or the name of a control symbol
    ids     the id of each piece of the model; null: pieces are looked up by name, as in Marian, where two models share
            a vocabulary, `>>de<<` at the start of a text is a token, and blanks around a decoded text are removed
    proto   the model, in base64

`SentencePieces` has those methods of the tokenizers library that `Tokenizer` calls.
"""

import base64
import json
from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any, NamedTuple

from allyouneed.errors import FolderError
from allyouneed.text.specials import UNK
from allyouneed.text.spm_file import MOST_PIECES, SpmModel, parse_spm

TYPE = "SentencePiece"  # of `model` in the file
BLANK = "▁"


class Pieces(NamedTuple):
    """The ids of a text, and the start and the end of each in the text."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class SentencePieces:
    """A model with the numbers of its pieces."""

    normalizer = TYPE  # a text may become shorter

    def __init__(self, model: SpmModel, vocab: Sequence[str], ids: Sequence[int] | None, where: object) -> None:
        if ids is not None and len(ids) != len(model.pieces):
            raise FolderError(f"{where}: {len(ids):,} ids for {len(model.pieces):,} pieces")
        self._model, self._vocab, self._ids, self._where = model, vocab, ids, where
        self._numbers = {name: number for number, name in enumerate(vocab)}
        self._processor = open_processor(model.proto(), where)

    def get_vocab(self, with_added_tokens: bool = False) -> dict[str, int]:
        """Return the id of each name."""
        return dict(self._numbers)

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        """Return no tokens: user-defined symbols are recognised by the model itself."""
        return {}

    def id_to_token(self, number: int) -> str | None:
        """Return the name of an id."""
        return self._vocab[number] if 0 <= number < len(self._vocab) else None

    def encode_batch_fast(self, texts: Sequence[str], add_special_tokens: bool = False) -> list[Pieces]:
        """Return the ids of each text, without their places."""
        if self._ids is not None:
            table = self._ids
            found = self._processor.encode([_valid(text) for text in texts], out_type=int)
            return [Pieces([table[number] for number in ids], []) for ids in found]
        split = [_tag_of(_valid(text)) for text in texts]
        named = self._processor.encode([text for _, text in split], out_type=str)
        return [Pieces(self._by_name([*tags, *names]), []) for (tags, _), names in zip(split, named, strict=True)]

    def encode(self, text: str, add_special_tokens: bool = False) -> Pieces:
        """Return the ids of a text and their places."""
        tags, rest = ([], _valid(text)) if self._ids is not None else _tag_of(_valid(text))
        found, before = self._processor.encode_as_offset_mapping(rest), len(text) - len(rest)
        places = [(start + before, end + before) for start, end in found["offsets"]]
        if self._ids is not None:
            return Pieces([self._ids[number] for number in found["ids"]], places)
        return Pieces(self._by_name([*tags, *found["pieces"]]), [*[(0, before)] * len(tags), *places])

    def encode_rest(self, text: str) -> list[int]:
        """Return the ids of a text that continues another one: no blank is added in front."""
        assert self._ids is not None, "a translation has no conversations"
        return [self._ids[number] for number in self._rest_processor.encode(_valid(text), out_type=int)]

    @cached_property
    def _rest_processor(self) -> Any:
        return open_processor(self._model.proto(prefix=False), self._where)

    def _by_name(self, names: Sequence[str]) -> list[int]:
        return [self._numbers.get(name, UNK) for name in names]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ids. Pieces of another model (Marian's other side) are text, too."""
        text: str = self._processor.decode([self._vocab[number] for number in ids])
        return text if self._ids is not None else text.replace(BLANK, " ").strip()

    def proto(self) -> bytes:
        """Return the model as a file of the package."""
        return self._model.proto()

    def to_str(self, pretty: bool = False) -> str:
        """Return the content of the file."""
        proto = base64.b64encode(self.proto()).decode("ascii")
        model = {"type": TYPE, "vocab": self._vocab, "ids": self._ids, "proto": proto}
        return json.dumps({"version": "1.0", "model": model}, ensure_ascii=False)

    @staticmethod
    def from_tree(tree: dict[str, Any], where: object) -> "SentencePieces":
        """Return what `to_str` wrote. Raise FolderError if the tree is not that."""
        model = tree["model"]
        vocab, ids, proto = (model.get(name) for name in ("vocab", "ids", "proto"))
        if not isinstance(vocab, list) or not all(isinstance(name, str) and name for name in vocab):
            raise FolderError(f"{where}: model.vocab should be a list of names")
        if len(vocab) > MOST_PIECES or len(set(vocab)) != len(vocab):
            raise FolderError(f"{where}: model.vocab should hold at most {MOST_PIECES:,} names, each once")
        listed = ids if isinstance(ids, list) else [] if ids is None else [None]
        if not all(type(one) is int and UNK <= one < len(vocab) for one in listed):
            raise FolderError(f"{where}: model.ids should be ids of the vocabulary, none of them PAD, BOS or EOS")
        if not isinstance(proto, str):
            raise FolderError(f"{where}: model.proto should be a text")
        try:
            data = base64.b64decode(proto, validate=True)
        except ValueError as error:
            raise FolderError(f"{where}: model.proto: {error}") from None
        return SentencePieces(parse_spm(data, where), vocab, ids, where)


def is_sentencepiece(tree: object) -> bool:
    """Return whether the tree of a tokenizer.json is a SentencePiece model."""
    model = tree.get("model") if isinstance(tree, dict) else None
    return isinstance(model, dict) and model.get("type") == TYPE


def open_processor(proto: bytes, where: object) -> Any:
    """Return a processor of the package. Raise FolderError if it is not installed, or refuses the model."""
    if find_spec("sentencepiece") is None:
        raise FolderError(f"{where}: needs sentencepiece: pip install 'allyouneed[spm]'")
    from sentencepiece import SentencePieceProcessor

    try:
        return SentencePieceProcessor(model_proto=proto)
    except (RuntimeError, ValueError) as error:
        raise FolderError(f"{where}: not a SentencePiece model: {str(error).splitlines()[0][:200]}") from None


def _valid(text: str) -> str:
    """Return the text with `?` for halves of surrogate pairs, which UTF-8 cannot express."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text


def _tag_of(text: str) -> tuple[list[str], str]:
    """Return the tag at the start of a text, if there is one, and the rest."""
    end = text.find("<<") + 2 if text.startswith(">>") else 1
    return ([text[:end]], text[end:]) if end > 1 else ([], text)
