"""Converts a Hugging Face tokenizer to ours, and maps our ids to their tokens.

Our ids 0 to 3 are PAD, BOS, EOS and UNK in every vocabulary. Their special tokens have arbitrary ids, and one token may
have several roles (Marian starts with its padding token, GPT-2 starts and ends with the same token). So ids are
renumbered: first the four, then all others in order. A role without a token of its own gets an extra row: a copy of the
token in that role, whose logit has zero probability. All probabilities and searches stay the same.

Special tokens are never recognised in text: a text that spells one stays text. Their names contain spaces, which no
token of text contains.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokenizers import Tokenizer as Library

from allyouneed.errors import FolderError
from allyouneed.interop.hf.rules import Rows
from allyouneed.text.specials import BOS, EOS, PAD, SPECIALS, UNK
from allyouneed.text.tokenizer import Tokenizer, control_name
from allyouneed.text.tokenizer_file import check_pipeline

PROBES = (
    "Hello, world! It's 3.14 o'clock.",
    " two  blanks\tand a tab\nand a line ",
    "Größe naïve 你好 🙂 Ελληνικά",
    "a",
)
KINDS = ("BPE", "Unigram", "WordPiece", "WordLevel")


# Tags of languages: eng_Latn (NLLB), en_XX (mBART), __en__ (M2M-100).
LANGUAGE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}|__[a-z]{2,3}__")


@dataclass(frozen=True)
class Parts:
    """Their token for each role; None if there is none."""

    pad: int | None
    begin: int | None  # a decoder's first input, or the token before a text to classify
    end: int | None
    unknown: int | None


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer, and the map between their ids and ours."""

    tokenizer: Tokenizer  # of the target, if the sides differ
    rows: Rows
    ours: Mapping[int, int]  # by their token
    source: Tokenizer


class Foreign(Protocol):
    """A tokenizer as imported."""

    where: object
    names: Mapping[int, str]  # by id
    added: Mapping[int, tuple[str, bool]]  # further names by id, and whether they are special: not part of a text

    def encode(self, text: str, controls: bool = False) -> list[int]:
        """Return the ids of a text. `controls`: names of special tokens become their ids."""

    def unknown(self, settings: Mapping[str, Any]) -> int | None:
        """Return the id of the unknown token."""

    def frame(self) -> tuple[list[int], list[int]]:
        """Return the ids that are added before and after a text."""

    def renumbered(self, names: Sequence[str], ours_of: Mapping[int, int]) -> tuple[Tokenizer, Tokenizer]:
        """Return our tokenisers of the source and the target, with these names and ids."""


class ForeignTokenizer(Foreign):
    """tokenizer.json as imported."""

    def __init__(self, tree: dict[str, Any], where: object) -> None:
        self.where = where
        model, added = tree.get("model"), tree.get("added_tokens", [])
        if not isinstance(model, dict) or not isinstance(added, list):
            raise FolderError(f"{where}: not a tokenizer")
        try:
            self.library = Library.from_str(json.dumps(tree))
            self.tree = tree = json.loads(self.library.to_str())  # upgrades old formats
            check_pipeline(tree)
            if tree["model"].get("dropout") is not None:  # texts would get random tokens from here on
                raise ValueError(f"model BPE: dropout = {tree['model']['dropout']} is not an allowed value")
            added = tree["added_tokens"]
            self.names = {number: name for name, number in self.library.get_vocab(with_added_tokens=True).items()}
            self.added = {int(one["id"]): (str(one["content"]), bool(one.get("special"))) for one in added}
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:  # the library raises bare Exception, and its panics are BaseException
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise FolderError(f"{where}: not a tokenizer: {reason}") from None
        self.kind = type(self.library.model).__name__
        if self.kind not in KINDS:
            raise FolderError(f"{where}: a model of kind {self.kind}; should be one of {', '.join(KINDS)}")
        if any(number < 0 or number > 1 << 24 for number in self.names):
            raise FolderError(f"{where}: ids should be between 0 and {1 << 24:,}")
        # We pad and truncate batches ourselves.
        self.library.no_padding()
        self.library.no_truncation()

    def encode(self, text: str, controls: bool = False) -> list[int]:
        # Control tokens are always recognised; no probe contains one unless it should.
        ids: list[int] = self.library.encode(text, add_special_tokens=False).ids
        return ids

    def unknown(self, settings: Mapping[str, Any]) -> int | None:
        """Return the id of the unknown token, from the model or else from `unk_token` in tokenizer_config.json."""
        model, named = self.tree["model"], settings.get("unk_token")
        if self.kind == "Unigram" and model.get("unk_id") is not None:
            return int(model["unk_id"])
        name = model.get("unk_token") or (named.get("content") if isinstance(named, dict) else named)
        return self.library.token_to_id(name) if isinstance(name, str) else None

    def frame(self) -> tuple[list[int], list[int]]:
        """Return the ids that its template puts before and after a text."""
        whole = self.library.encode(PROBES[0], add_special_tokens=True).ids
        bare = self.library.encode(PROBES[0], add_special_tokens=False).ids
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return whole[:start], whole[start + len(bare) :]
        raise FolderError(
            f"{self.where}: post_processor: does more than add tokens before and after a text, which is not supported"
        )

    def renumbered(self, names: Sequence[str], ours_of: Mapping[int, int]) -> tuple[Tokenizer, Tokenizer]:
        text = json.dumps(_rewritten(self, names, ours_of), ensure_ascii=False)
        made = Tokenizer.from_json(text, str(self.where))
        return made, made


def renumber(tokenizer: Foreign, parts: Parts, size: int, classes: int = 0) -> Vocabulary:
    """Renumber their vocabulary of `size` tokens. `classes`: number of output classes, if outputs are not tokens."""
    special = [parts.pad, parts.begin, parts.end, parts.unknown]
    for number in [*(number for number in special if number is not None), *tokenizer.names]:
        if not 0 <= number < size:
            raise FolderError(f"{tokenizer.where}: id {number}, but the model has {size:,} tokens")
    taken = set(special)
    theirs = [*special, *(number for number in range(size) if number not in taken)]
    # A token with several roles can be generated in one of them only: as EOS if that is one.
    owner: dict[int | None, int] = {}
    for ours in (EOS, UNK, PAD, BOS):
        if theirs[ours] is not None:
            owner.setdefault(theirs[ours], ours)
    hidden = frozenset(ours for ours in (PAD, BOS, EOS, UNK) if owner.get(theirs[ours]) != ours)
    ours_of = {number: ours for ours, number in enumerate(theirs) if number is not None and ours not in hidden}
    names = _names(tokenizer, theirs)
    source, target = tokenizer.renumbered(names, ours_of)
    _compare(tokenizer, source, ours_of)
    return Vocabulary(target, Rows(tuple(theirs), hidden, size, classes), ours_of, source)


def language_tags(tokenizer: Foreign, vocabulary: Vocabulary) -> dict[str, int] | None:
    """Return the ids of the special tokens that name languages, by language; None if there are none."""
    special = {name: number for number, (name, special) in tokenizer.added.items() if special}
    named = {name.strip("_"): number for name, number in special.items() if LANGUAGE.fullmatch(name)}
    return {name: vocabulary.ours[number] for name, number in named.items() if number in vocabulary.ours} or None


def _names(tokenizer: Foreign, theirs: Sequence[int | None]) -> list[str]:
    """Return the names of our ids, up to the last one with a name."""
    names = list(SPECIALS)
    named = max((ours for ours, number in enumerate(theirs) if number in tokenizer.names), default=-1)
    for number in theirs[len(SPECIALS) : named + 1]:
        assert number is not None
        name, special = tokenizer.added.get(number, (tokenizer.names.get(number), False))
        names.append(control_name(f"unused {number}" if name is None else name) if special or name is None else name)
    if len(set(names)) != len(names):
        raise FolderError(f"{tokenizer.where}: two tokens have the same name")
    return names


def _rewritten(tokenizer: ForeignTokenizer, names: Sequence[str], ours_of: Mapping[int, int]) -> dict[str, Any]:
    """Return tokenizer.json with our ids, without recognising control tokens in text or adding tokens."""
    tree = {**tokenizer.tree, "post_processor": None, "truncation": None, "padding": None}
    tree["added_tokens"] = [
        {**one, "id": ours_of[one["id"]]} for one in tokenizer.tree.get("added_tokens", []) if not one.get("special")
    ]
    model = {**tokenizer.tree["model"]}
    if tokenizer.kind == "Unigram":
        scores = dict(model["vocab"])
        least = min(scores.values(), default=0.0)
        old = {ours_of[number]: name for number, name in tokenizer.names.items() if number in ours_of}
        model["vocab"] = [
            [name, scores.get(old.get(ours, ""), least) if name == old.get(ours) else least]
            for ours, name in enumerate(names)
        ]
        model["unk_id"] = UNK if model.get("unk_id") is not None else None
    else:
        model["vocab"] = {name: ours for ours, name in enumerate(names)}
        if model.get("unk_token") is not None:
            model["unk_token"] = SPECIALS[UNK]
    tree["model"] = model
    return tree


def _compare(theirs: Foreign, made: Tokenizer, ours_of: Mapping[int, int]) -> None:
    """Raise FolderError if a text gets different tokens, or if a text can spell a control token."""
    for text in PROBES:
        right = [ours_of[number] for number in theirs.encode(text)]
        if made.encode(text) != right:
            raise FolderError(f"{theirs.where}: cannot be renumbered: {text!r} would get different tokens")
    controls = sorted(made.controls - {UNK})
    for number in [*controls[:8], *controls[-8:]]:
        if number in made.encode(next(name for name, ours in made.vocabulary.items() if ours == number)):
            raise FolderError(
                f"{theirs.where}: a text can spell its token {number}; tokens of text should not contain spaces"
            )
