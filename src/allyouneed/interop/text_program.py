"""The part of a README's program that turns text into tokens and back, with the library of the model's tokenizer.

The program gets the functions `tokens_of(text)`, a list of names, and `text_of(tokens)`, which leaves out control
symbols. With `ids` it gets `ids_of(text)`, and `text_of` takes ids.
"""

from pathlib import Path

from allyouneed.text.codec import Codec
from allyouneed.text.specials import UNK

SPM_FILES = "source.spm", "target.spm"
NUMBERED = f"""import json

names = json.load(open("tokenizer.json", encoding="utf-8"))["model"]["vocab"]
numbers = {{name: number for number, name in enumerate(names)}}


def ids_of(text):
    return [numbers.get(token, {UNK}) for token in tokens_of(text)]


def text_of(ids):
    return text_of_tokens([names[number] for number in ids if number < len(names)])


"""


def library_of(codec: Codec) -> str:
    """Return the package that the program imports."""
    tokenizer = codec.target or codec.source
    return "sentencepiece" if tokenizer is not None and tokenizer.kind == "sentencepiece" else "tokenizers"


def write_spm_files(codec: Codec, folder: Path) -> None:
    """Write the SentencePiece models of both sides, which the program opens, if the codec has such."""
    if library_of(codec) == "sentencepiece":
        for name, tokenizer in zip(
            SPM_FILES, (codec.source or codec.target, codec.target or codec.source), strict=True
        ):
            assert tokenizer is not None
            (folder / name).write_bytes(tokenizer.spm_proto())


def text_functions(codec: Codec, ids: bool = False) -> str:
    """Return the lines of a program that define the functions, without imports of other packages."""
    return _sentencepiece(codec, ids) if library_of(codec) == "sentencepiece" else _tokenizers(codec, ids)


def _tokenizers(codec: Codec, ids: bool) -> str:
    same = codec.source is codec.target or codec.source is None or codec.target is None
    target = "source" if same else 'Tokenizer.from_file("tokenizer.target.json")'
    opening = f"""from tokenizers import Tokenizer

source = Tokenizer.from_file("tokenizer.json")
target = {target}
"""
    if ids:
        return f"""{opening}

def ids_of(text):
    return source.encode(text, add_special_tokens=False).ids


def text_of(ids):
    named = [(token, target.id_to_token(token)) for token in ids]  # a model may have unused ids
    words = [token for token, name in named if name and not name.startswith("< ")]
    return target.decode(words, skip_special_tokens=False)


"""
    return f"""{opening}

def tokens_of(text):
    return source.encode(text, add_special_tokens=False).tokens


def text_of(tokens):
    ids = [target.token_to_id(token) for token in tokens if not token.startswith("< ")]
    return target.decode(ids, skip_special_tokens=False)


"""


def _sentencepiece(codec: Codec, ids: bool) -> str:
    if codec.source is not codec.target and codec.source is not None and codec.target is not None:  # Marian
        encoded = """    tag = text[: text.index("<<") + 2] if text.startswith(">>") and "<<" in text else ""
    return [tag] * bool(tag) + source.encode(text[len(tag) :], out_type=str)"""
        decoded = 'target.decode(words).replace("\\u2581", " ").strip()'
    else:
        encoded, decoded = "    return source.encode(text, out_type=str)", "target.decode(words)"
    functions = f"""from sentencepiece import SentencePieceProcessor

source = SentencePieceProcessor(model_file="source.spm")
target = SentencePieceProcessor(model_file="target.spm")


def tokens_of(text):
{encoded}


def {"text_of_tokens" if ids else "text_of"}(tokens):
    words = [token for token in tokens if not token.startswith("< ")]
    return {decoded}


"""
    return functions + NUMBERED if ids else functions
