"""The allowed contents of a tokenizer.json: parts from a closed table, with settings of bounded sizes.

The tokenizers library accepts any pipeline: expressions that take exponential time, letters replaced by long texts,
tables of prefixes that it slices without a bounds check (it panics). An untrusted file may only use the parts in these
tables, so that encoding takes time and memory in proportion to the text. Our tokenisers need a few of the parts; the
others occur in imported ones.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any

MOST_PIECES = 1 << 20
LONGEST_SETTING = 16  # characters that a part inserts into a text, or removes
LARGEST_TABLE = 1 << 20  # characters of a table of normal forms
LONGEST_FORM = 64  # bytes of one normal form in it
DEEPEST, MOST_PARTS = 2, 8  # nesting of sequences, and parts of one sequence
_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# Every expression that may split a text: ours, and those of known families (GPT-2, Llama 3, Qwen 2, BLOOM). All of them
# read each character a bounded number of times.
EXPRESSIONS = frozenset(
    {
        r"[\s\S]",
        r"\s+",
        r" {2,}",
        " ?[^ -]+| ?-",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        _ENGLISH + r"\p{N}{1,3}" + _REST,
        _ENGLISH + r"\p{N}" + _REST,
        r" ?[^(\s|[.,!?…。，、।۔،])]+",
    }
)
Rule = Callable[[Any], bool]


def _flag(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _short(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_SETTING


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 1000


def _pattern(value: Any) -> bool:
    if not isinstance(value, dict) or len(value) != 1:
        return False
    ((kind, text),) = value.items()
    return (kind == "Regex" and isinstance(text, str) and text in EXPRESSIONS) or (kind == "String" and _short(text))


def _one_of(*names: str) -> Rule:
    return lambda value: isinstance(value, str) and value in names


def _table(value: Any) -> bool:
    """Check normal forms as SentencePiece writes them: a trie preceded by its size, then NUL-terminated texts."""
    if value is None:
        return True
    if not isinstance(value, str) or len(value) > LARGEST_TABLE:
        return False
    data = base64.b64decode(value, validate=True)
    forms = data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")
    return max(map(len, forms)) <= LONGEST_FORM


def _is_longer(part: dict[str, Any]) -> bool:
    """Return True if a replacement is longer than its pattern: a chain of them could grow without bound."""
    text = part.get("pattern", {}).get("String") or "x"
    return len(part.get("content", "")) > len(text)


_BEHAVIOUR = _one_of("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
_BYTES: dict[str, Rule] = {"add_prefix_space": _flag, "trim_offsets": _flag, "use_regex": _flag}
_METASPACE: dict[str, Rule] = {
    "replacement": lambda value: isinstance(value, str) and len(value) == 1,
    "prepend_scheme": _one_of("always", "never", "first"),
    "split": _flag,
    "add_prefix_space": _flag,
    "str_rep": _short,
}
_STRIP: dict[str, Rule] = {"content": _short, "start": _count, "stop": _count}
NORMALIZERS: dict[str, dict[str, Rule]] = {
    **{name: {} for name in ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents")},
    "BertNormalizer": {**dict.fromkeys(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), _flag)},
    "Strip": {"strip_left": _flag, "strip_right": _flag},
    "Prepend": {"prepend": _short},
    "Replace": {"pattern": _pattern, "content": _short},
    "Precompiled": {"precompiled_charsmap": _table},
}
SPLITTERS: dict[str, dict[str, Rule]] = {
    **{name: {} for name in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")},
    "ByteLevel": _BYTES,
    "Metaspace": _METASPACE,
    "Split": {"pattern": _pattern, "behavior": _BEHAVIOUR, "invert": _flag},
    "Punctuation": {"behavior": _BEHAVIOUR},
    "Digits": {"individual_digits": _flag},
}
DECODERS: dict[str, dict[str, Rule]] = {
    **{name: {} for name in ("Fuse", "ByteFallback")},
    "ByteLevel": _BYTES,
    "Metaspace": _METASPACE,
    "WordPiece": {"prefix": _short, "cleanup": _flag},
    "Strip": _STRIP,
    "Replace": {"pattern": _pattern, "content": _short},
    "BPEDecoder": {"suffix": _short},
}
_UNKNOWN: Rule = lambda value: value in (None, "< unk >")  # noqa: E731
_NOTHING: Rule = lambda value: value in (None, "")  # noqa: E731
MODELS: dict[str, dict[str, Rule]] = {
    "BPE": {
        "dropout": lambda value: value is None,
        "unk_token": _UNKNOWN,
        # A prefix longer than a piece makes the library panic; a suffix would be a second spelling of a piece.
        **dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix"), _NOTHING),
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), _flag),
    },
    "Unigram": {"unk_id": lambda value: value in (None, 3), "byte_fallback": _flag},
    "WordLevel": {"unk_token": _UNKNOWN},
    "WordPiece": {"unk_token": _UNKNOWN, "continuing_subword_prefix": _short, "max_input_chars_per_word": _count},
}
# name of a part: the field that lists the parts of a sequence, and the table of parts
_PIPELINE: dict[str, tuple[str, dict[str, dict[str, Rule]]]] = {
    "normalizer": ("normalizers", NORMALIZERS),
    "pre_tokenizer": ("pretokenizers", SPLITTERS),
    "decoder": ("decoders", DECODERS),
}
_NONE = ("truncation", "padding", "post_processor")


def check_tokenizer_file(tree: Any) -> None:
    """Raise ValueError if the tree of a tokenizer.json has a part or a setting that is not allowed."""
    if not isinstance(tree, dict) or not isinstance(tree.get("model"), dict):
        raise ValueError("should be a table with a model")
    unknown = tree.keys() - {"version", "added_tokens", "model", *_NONE, *_PIPELINE}
    if unknown or tree.get("version", "1.0") != "1.0":
        raise ValueError(f"{', '.join(map(repr, sorted(unknown))) or 'version'}: should be of version 1.0")
    for name in _NONE:
        if tree.get(name) is not None:
            raise ValueError(f"{name}: should be null: special ids, truncation and padding are added elsewhere")
    check_pipeline(tree)
    _check_added(tree.get("added_tokens", []))
    _check_model(tree["model"])


def check_pipeline(tree: Mapping[str, Any]) -> None:
    """Check only the parts that process text. Call this before an untrusted tokeniser encodes its first text."""
    for name, (listed, table) in _PIPELINE.items():
        if tree.get(name) is not None:
            _check_part(tree[name], name, listed, table)


def _check_part(part: Any, where: str, listed: str, table: Mapping[str, dict[str, Rule]], depth: int = 0) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "Sequence" and depth < DEEPEST and isinstance(part.get(listed), list) and len(part) == 2:
        if len(part[listed]) > MOST_PARTS:
            raise ValueError(f"{where}: a sequence of {len(part[listed])} parts; at most {MOST_PARTS} are allowed")
        for one in part[listed]:
            _check_part(one, where, listed, table, depth + 1)
        return
    if not isinstance(kind, str) or kind not in table:
        raise ValueError(f"{where}: type {kind!r} should be one of {', '.join(table)}")
    _check_settings(part, f"{where}: {kind}", table[kind])
    if kind == "Replace" and _is_longer(part):
        raise ValueError(f"{where}: Replace: content should not be longer than what it replaces")


def _check_settings(part: dict[str, Any], where: str, rules: Mapping[str, Rule]) -> None:
    for name, value in part.items():
        if name != "type" and (name not in rules or not rules[name](value)):
            raise ValueError(f"{where}: {name} = {str(value)[:60]!r} is not an allowed value")


def _check_added(added: Any) -> None:
    if not isinstance(added, list) or len(added) > MOST_PIECES:
        raise ValueError("added_tokens should be a list")
    for one in added:
        content = one.get("content") if isinstance(one, dict) else None
        if not isinstance(content, str) or not 0 < len(content) <= 1000 or type(one.get("id")) is not int:
            raise ValueError("added_tokens: each should have an id and a content")
        if one.get("special") is not False:
            raise ValueError("added_tokens: none may be special: text must not become a control symbol")
        flags = {name: value for name, value in one.items() if name not in ("id", "content")}
        if not all(isinstance(value, bool) for value in flags.values()):
            raise ValueError("added_tokens: settings should be true or false")


def _check_model(model: dict[str, Any]) -> None:
    kind = model.get("type")
    if not isinstance(kind, str) or kind not in MODELS:
        raise ValueError(f"model.type {kind!r} should be one of {', '.join(MODELS)}")
    parts = {"vocab", "merges"} if kind == "BPE" else {"vocab"}
    _check_settings({name: value for name, value in model.items() if name not in parts}, f"model {kind}", MODELS[kind])
    vocabulary: Any = model.get("vocab")
    if isinstance(vocabulary, list | dict) and len(vocabulary) > MOST_PIECES:
        raise ValueError(f"{len(vocabulary):,} pieces; at most {MOST_PIECES:,} are allowed")
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
        halves = pair.split(" ") if isinstance(pair, str) else pair  # the older form: "a b"
        if not isinstance(halves, list) or len(halves) != 2 or not all(isinstance(half, str) for half in halves):
            raise ValueError("model.merges should be a list of pairs of pieces")
        if not {halves[0], halves[1], halves[0] + halves[1]} <= vocabulary.keys():
            raise ValueError(f"model.merges: {pair!r} and its result should be in model.vocab")
