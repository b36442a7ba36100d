"""What a tokenizer.json may hold: the few forms that `tokenizer.train` writes, and nothing else.

The library behind it reads any pipeline: expressions that take exponential time, texts put before each text, tables for
prefixes that it then cuts without looking (it panics). A file from anywhere chooses from this closed table instead, so
that whatever is accepted takes time and memory in proportion to the text.
"""

from typing import Any

MOST_PIECES = 1 << 20

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_FROM_BYTES = {**_BYTES, "add_prefix_space": True}
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_BLANK_BEFORE = {"type": "Prepend", "prepend": " "}
_ONE_BLANK = {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}
_NO_BLANKS = {"type": "Strip", "strip_left": True, "strip_right": True}
_SPLIT_CHARACTERS = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
_SPLIT_WORDS = {"type": "Split", "pattern": {"Regex": " ?[^ -]+| ?-"}, "behavior": "Removed", "invert": True}

# (normaliser, splitter, decoder)
PIPELINES: tuple[tuple[Any, Any, Any], ...] = (
    (None, _BYTES, _FROM_BYTES),
    (_BLANK_BEFORE, _BYTES, {"type": "Sequence", "decoders": [_FROM_BYTES, _STRIP]}),
    (None, _SPLIT_CHARACTERS, {"type": "Fuse"}),
    (
        {"type": "Sequence", "normalizers": [_ONE_BLANK, _NO_BLANKS, _BLANK_BEFORE]},
        _SPLIT_WORDS,
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, _STRIP]},
    ),
)
_AROUND: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "post_processor": None,
}
_MODELS: dict[str, dict[str, Any]] = {
    "BPE": {
        **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False),
    },
    "Unigram": {"unk_id": 3, "byte_fallback": False},
    "WordLevel": {"unk_token": "< unk >"},
}


def check_tokenizer_file(tree: Any) -> None:
    """ValueError says what in the tree of a tokenizer.json is none of the known forms."""
    if not isinstance(tree, dict) or not isinstance(tree.get("model"), dict):
        raise ValueError("should be a table with a model")
    pipeline = tuple(tree.get(name) for name in ("normalizer", "pre_tokenizer", "decoder"))
    if pipeline not in PIPELINES:
        raise ValueError("its normalizer, pre_tokenizer and decoder are none of those that allyouneed writes")
    rest = {
        name: value for name, value in tree.items() if name not in ("normalizer", "pre_tokenizer", "decoder", "model")
    }
    if rest != _AROUND:
        differing = sorted(name for name in rest.keys() | _AROUND.keys() if rest.get(name) != _AROUND.get(name, rest))
        raise ValueError(f"{', '.join(map(repr, differing))} should be as in {_AROUND}")
    _check_model(tree["model"])


def _check_model(model: dict[str, Any]) -> None:
    kind = model.get("type")
    settings = _MODELS.get(kind) if isinstance(kind, str) else None
    if settings is None:
        raise ValueError(f"model.type {kind!r} should be one of {', '.join(_MODELS)}")
    parts = {"vocab", "merges"} if kind == "BPE" else {"vocab"}
    if {name: value for name, value in model.items() if name not in parts | {"type"}} != settings:
        raise ValueError(f"the settings of model {kind} should be {settings}")
    vocabulary: Any = model.get("vocab")
    if isinstance(vocabulary, list | dict) and len(vocabulary) > MOST_PIECES:
        raise ValueError(f"{len(vocabulary):,} pieces; at most {MOST_PIECES:,} are read")
    if kind == "Unigram":
        if not isinstance(vocabulary, list) or not all(_is_scored(item) for item in vocabulary):
            raise ValueError("model.vocab should be a list of [piece, score]")
    elif not isinstance(vocabulary, dict) or not all(name and type(vocabulary[name]) is int for name in vocabulary):
        raise ValueError("model.vocab should be a table of piece = id")
    if kind == "BPE":
        _check_merges(model.get("merges"), vocabulary)


def _is_scored(item: Any) -> bool:
    return (
        isinstance(item, list)
        and len(item) == 2
        and isinstance(item[0], str)
        and item[0] != ""
        and isinstance(item[1], int | float)
        and -1e9 < item[1] < 1e9
    )


def _check_merges(merges: Any, vocabulary: dict[str, int]) -> None:
    if not isinstance(merges, list) or len(merges) > MOST_PIECES:
        raise ValueError(f"model.merges should be a list of at most {MOST_PIECES:,} pairs")
    for pair in merges:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(half, str) for half in pair):
            raise ValueError("model.merges should be a list of pairs of pieces")
        if not {pair[0], pair[1], pair[0] + pair[1]} <= vocabulary.keys():
            raise ValueError(f"model.merges: {pair!r} and what it makes should be in model.vocab")
