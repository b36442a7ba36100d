"""Converts our vocabulary to a Hugging Face tokenizer: tokenizer.json with control tokens and their roles."""

import json
from dataclasses import dataclass
from typing import Any

from allyouneed.config import Tree
from allyouneed.interop.hf.files import TOKENIZER, TOKENIZER_CONFIG
from allyouneed.interop.hf.rules import Rows
from allyouneed.models.encoder import EncoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.text.codec import Codec
from allyouneed.text.specials import BOS, EOS, PAD, UNK

PARTS = {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK}


@dataclass(frozen=True)
class TokenMap:
    """The map from our ids to their tokens."""

    rows: Rows
    roles: dict[int, int | None]  # of our four special ids

    def numbers(self, config: Any) -> Tree:
        """Return the config fields that name special tokens."""
        found: Tree = {f"{part}_token_id": self.roles[ours] for part, ours in PARTS.items() if part != "unk"}
        if isinstance(config, EncoderDecoderConfig):
            found |= {"decoder_start_token_id": self.roles[BOS]}
        return found


def tokenizer_files(codec: Codec, tokens: TokenMap, config: Any) -> dict[str, Tree]:
    """Return tokenizer.json and tokenizer_config.json."""
    tokenizer = codec.source or codec.target
    assert tokenizer is not None
    tree = json.loads(tokenizer.to_json())
    numbers = {name: tokens.rows.theirs[ours] for name, ours in tokenizer.vocabulary.items()}
    names = {number: name for name, number in numbers.items() if number is not None}
    model = tree["model"]
    if isinstance(model["vocab"], list):
        scores = dict(model["vocab"])
        model["vocab"] = [[names[number], scores[names[number]]] for number in range(len(names))]
        unknown = tokens.rows.theirs[UNK]
        model["unk_id"] = unknown
    else:
        model["vocab"] = {names[number]: number for number in range(len(names))}
        if tokens.rows.theirs[UNK] is None:
            model["unk_token"] = None
    added = [{**one, "id": tokens.rows.theirs[one["id"]]} for one in tree["added_tokens"]]
    controls = sorted(number for ours in tokenizer.controls if (number := tokens.rows.theirs[ours]) is not None)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added += [{"id": number, "content": names[number], **flags} for number in controls]
    tree["added_tokens"] = sorted(added, key=lambda one: one["id"])
    tree["post_processor"] = _template(codec, tokens, names, config)
    parts = {part: tokens.roles[ours] for part, ours in PARTS.items()}
    named: Tree = {f"{part}_token": names[number] for part, number in parts.items() if number is not None}
    if isinstance(config, EncoderConfig):
        named |= {"cls_token": named["bos_token"], "sep_token": named["eos_token"]}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **named}
    return {TOKENIZER: tree, TOKENIZER_CONFIG: settings}


def _template(codec: Codec, tokens: TokenMap, names: dict[int, str], config: Any) -> Tree:
    """Return the template around a text: the frame of a source, or BOS before a prompt, if texts begin with it."""
    begin: tuple[int, ...] = (BOS,) if codec.bos else ()
    sides = codec.framing if codec.source is not None else (begin, ())
    numbers = [[_token(tokens, ours) for ours in side] for side in sides]
    before, behind = ([{"SpecialToken": {"id": names[n], "type_id": 0}} for n in side] for side in numbers)
    text = [{"Sequence": {"id": letter, "type_id": 0}} for letter in "AB"]
    used = sorted({n for side in numbers for n in side})
    return {
        "type": "TemplateProcessing",
        "single": [*before, text[0], *behind],
        "pair": [*before, *text, *behind],
        "special_tokens": {names[n]: {"id": names[n], "ids": [n], "tokens": [names[n]]} for n in used},
    }


def _token(tokens: TokenMap, ours: int) -> int:
    number = tokens.roles[ours] if ours in tokens.roles else tokens.rows.theirs[ours]
    assert number is not None, "the frame of a text consists of tokens"
    return number
