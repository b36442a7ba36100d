"""Text <-> ids. Five kinds, all saved as a `tokenizer.json` that Hugging Face's `tokenizers` reads:

    bpe         merges of bytes (Sennrich et al. 2016, arXiv:1508.07909), never an unknown token, exact round trip
    unigram     pieces of bytes with probabilities (Kudo 2018, arXiv:1804.10959), never unknown, exact round trip
    characters  code points seen in training; others are unknown
    bytes       256 ids, never unknown, exact round trip
    words       split at blanks and hyphens; unseen words are unknown; a round trip makes every run of blanks one blank

Ids 0 to 3 are PAD, BOS, EOS, UNK. Their names contain blanks. Pieces write blanks as another character, words have a
blank only in front, and characters are single. So no text ever equals such a name: text is never a control symbol.
Imported tokenisers may have more such ids, with names from `control_name`. They may be of two other kinds: wordpiece,
and SentencePiece models (`sentencepieces.py`), whose file is not one of the library. `pictures.py` reads images.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from allyouneed.config import Config
from allyouneed.errors import ConfigError, FolderError
from allyouneed.text.child_training import TrainProgress, train_in_child
from allyouneed.text.library_threads import THREADS
from allyouneed.text.pictures import Pictures, is_pictures
from allyouneed.text.sentencepieces import SentencePieces, is_sentencepiece
from allyouneed.text.specials import SPECIALS, UNK
from allyouneed.text.tokenizer_file import check_tokenizer_file

LARGEST_FILE = 64 << 20
MOST_REASON = 200  # characters of the library's error message
# Characters. Training time grows faster than the length of a word; longer texts are noise or repetition.
LONGEST_TRAINED = 10_000
# Characters that are learnt from in this process, within a fraction of a second; more are in a child process.
TRAINED_HERE = {"bpe": 1 << 18, "unigram": 1 << 15}
Kind = Literal["bpe", "unigram", "characters", "bytes", "words"]
AnyKind = Kind | Literal["wordpiece", "sentencepiece", "pictures"]  # the first two: only imported
BYTES = 256


class TokenizerConfig(Config):
    """The settings of a tokeniser."""

    kind: Kind = "bpe"
    size: Annotated[int, Field(ge=5, le=1 << 20)] = 8000  # most ids, the four special ones included
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0  # bpe only: the probability of skipping a merge in training text

    @model_validator(mode="after")
    def _consistent(self) -> "TokenizerConfig":
        least = len(SPECIALS) + BYTES
        if self.kind in ("bpe", "unigram") and self.size < least:
            raise ValueError(
                f"size={self.size}: a {self.kind} tokeniser needs at least {least} (256 bytes, 4 special ids)"
            )
        if self.dropout and self.kind != "bpe":
            raise ValueError(f"dropout={self.dropout}: only a bpe tokeniser has merges to skip, not {self.kind}")
        return self


class Tokenizer:
    """A trained tokeniser of any kind."""

    def __init__(self, library: Library | SentencePieces | Pictures) -> None:
        self._library: Any = library
        self.vocabulary: dict[str, int] = library.get_vocab(with_added_tokens=False)
        self.size = len(self.vocabulary)
        self.kind: AnyKind = _kind_of(library)
        self.picture = library.config if isinstance(library, Pictures) else None  # how it reads images
        self.controls = frozenset(number for name, number in self.vocabulary.items() if _is_control(name))
        self._characters = _character_table(self.vocabulary) if self.kind == "characters" else None
        self.ends_words_at_blanks = _ends_words_at_blanks(library)  # as long_texts.py needs it
        names = [name for name, number in self.vocabulary.items() if number not in self.controls]
        # Words can have any length, and a normaliser can shorten a text.
        simple = library.normalizer is None or isinstance(library.normalizer, normalizers.Prepend)
        # Whether encoding takes time linear in the text: wordpiece searches from each letter of a word.
        self.linear_time = simple and self.kind != "wordpiece"
        known = self.linear_time and self.kind != "words"
        self._longest = max((len(name) for name in names), default=1) if known else 0

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special ids."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        if self._characters is not None:
            return [self._encode_characters(text) for text in texts]
        with THREADS, _no_panic():
            return [encoding.ids for encoding in self._library.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_rest(self, text: str) -> list[int]:
        """Return the ids of a text that follows a control symbol: where only the first word of all gets a blank."""
        if isinstance(self._library, SentencePieces):
            return self._library.encode_rest(text)
        with _no_panic():
            ids: list[int] = self._rest.encode(text, add_special_tokens=False).ids
        return ids

    @cached_property
    def _rest(self) -> Library:
        text = self._library.to_str()
        later = text.replace('"prepend_scheme":"first"', '"prepend_scheme":"never"')  # not in a string: `"` is escaped
        return self._library if later == text else Library.from_str(later)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; special ids are ignored."""
        kept = [int(i) for i in ids if int(i) not in self.controls]
        with _no_panic():
            text: str = self._library.decode(kept, skip_special_tokens=False)
        return text

    def names(self, ids: Sequence[int]) -> list[str]:
        """Return the names of ids in the vocabulary."""
        return [self._library.id_to_token(number) or "" for number in ids]

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """Return each id with the start and the end of its characters in the text."""
        if self._characters is not None:
            return [(token, place, place + 1) for place, token in enumerate(self._encode_characters(text))]
        with _no_panic():
            found = self._library.encode(text, add_special_tokens=False)
        return [(token, start, end) for token, (start, end) in zip(found.ids, found.offsets, strict=True)]

    def surely_longer(self, text: str, length: int) -> bool:
        """Return whether a text must have more than `length` ids, without encoding it."""
        return len(text) > self._longest * length > 0

    def _encode_characters(self, text: str) -> list[int]:
        # The library takes a microsecond per character, a table lookup a few nanoseconds. The ids are the same.
        assert self._characters is not None
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        known = codes < len(self._characters)
        ids: list[int] = np.where(known, self._characters[np.where(known, codes, 0)], UNK).tolist()
        return ids

    def words(self, text: str) -> list[str]:
        """Split a text into words, before each word is split into tokens."""
        normal = self._library.normalizer.normalize_str(text) if self._library.normalizer else text
        return [piece for piece, _ in self._library.pre_tokenizer.pre_tokenize_str(normal)]

    def pieces(self, word: str) -> list[str]:
        """Return the tokens of one word of `words`, as strings."""
        return [token.value for token in self._library.model.tokenize(word)]

    def spm_proto(self) -> bytes:
        """Return the file of a SentencePiece model."""
        assert isinstance(self._library, SentencePieces)
        return self._library.proto()

    def to_json(self) -> str:
        """Return the content of tokenizer.json."""
        text: str = self._library.to_str(pretty=True)
        return text

    @staticmethod
    def from_json(text: str, where: str) -> "Tokenizer":
        """Return a tokeniser from the content of an untrusted tokenizer.json. Raise FolderError if it is not one."""
        if len(text) > LARGEST_FILE:
            raise FolderError(f"{where}: more than {LARGEST_FILE:,} characters; a tokeniser is smaller")
        try:
            tree = json.loads(text)
            if is_sentencepiece(tree):
                library: Any = SentencePieces.from_tree(tree, where)
            elif is_pictures(tree):
                library = Pictures.from_tree(tree, where)
            else:
                check_tokenizer_file(tree)
                library = Library.from_str(json.dumps(tree))  # what was checked: the text might parse differently
            tokenizer = Tokenizer(library)
        except (KeyboardInterrupt, MemoryError, FolderError):
            raise
        except BaseException as error:  # the library raises bare Exception, and panics with BaseException
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise FolderError(f"{where}: not a tokeniser of allyouneed: {reason[:MOST_REASON]}") from None
        ids = sorted(tokenizer.vocabulary.values())
        specials = [tokenizer.vocabulary.get(name) for name in SPECIALS]
        matched = any(token.special for token in library.get_added_tokens_decoder().values())
        if specials != [0, 1, 2, 3] or ids != list(range(len(ids))) or matched:
            raise FolderError(f"{where}: not a tokeniser of allyouneed: its ids 0 to 3 should be {', '.join(SPECIALS)}")
        return tokenizer

    @staticmethod
    def load(path: Path) -> "Tokenizer":
        """Return a tokeniser from a tokenizer.json."""
        try:
            if path.stat().st_size > LARGEST_FILE:
                raise FolderError(f"{path}: {path.stat().st_size:,} bytes; a tokeniser has at most {LARGEST_FILE:,}")
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FolderError(f"{path}: not readable as a tokeniser: {error}") from None
        return Tokenizer.from_json(text, str(path))


@contextmanager
def _no_panic() -> Iterator[None]:
    """Convert the library's panics and bare exceptions, which inconsistent tables cause, to FolderError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException" and type(error) is not Exception:
            raise
        raise FolderError(f"the tokeniser is broken: {str(error)[:MOST_REASON]}") from None


def train(
    texts: Iterable[str], config: TokenizerConfig, sentences: bool = True, progress: TrainProgress | None = None
) -> Tokenizer:
    """Train a tokeniser on texts. `sentences`: the first word of each text is treated like any other word.

    A running text (`sentences=False`) arrives in chunks. No blank is added in front of a chunk. `progress` receives
    the number of tokens that are learnt and to be learnt, if training takes long enough and the library counts them.
    """
    if config.kind == "bytes":
        return Tokenizer(_pieces(models.BPE(vocab=_numbered(sorted(pre_tokenizers.ByteLevel.alphabet())), merges=[])))
    if config.kind == "characters":
        counts = Counter[str]()
        for text in texts:
            counts.update(text)
        return _closed(_most_common(counts, config.size), "characters")
    if config.kind == "words":
        counts, split = Counter(), _closed([], "words").words
        for text in texts:
            counts.update(split(text))
        return _closed(_most_common(counts, config.size), "words")
    cut = (text[:LONGEST_TRAINED] for text in texts)
    first, held = [], 0
    for text in cut:
        first.append(text)
        held += len(text)
        if held > TRAINED_HERE[config.kind]:
            return _train_in_child(chain(first, cut), config, sentences, progress)
    return train_pieces(iter(first), config, sentences)


def _train_in_child(
    texts: Iterable[str], config: TokenizerConfig, sentences: bool, progress: TrainProgress | None
) -> Tokenizer:
    """Train in a child process: the library does not return for minutes, and until then no signal would be handled."""
    answer = train_in_child(texts, {"config": config.model_dump(), "sentences": sentences}, progress)
    if "error" in answer:
        raise ConfigError(answer["error"])
    return Tokenizer(Library.from_str(answer["tokenizer"]))


def of_symbols(symbols: Iterable[str], kind: Literal["characters", "words"]) -> Tokenizer:
    """Return a tokeniser for a closed set of characters or words, without training."""
    marks = {" " + symbol for symbol in symbols} if kind == "words" else set(symbols)
    return _closed(sorted(marks), kind)


def train_pieces(
    texts: Iterator[str], config: TokenizerConfig, sentences: bool, show_progress: bool = False
) -> Tokenizer:
    """Train a BPE or unigram tokeniser in this process. `show_progress`: as JSON on standard error, if possible."""
    options: dict[str, Any] = {
        "vocab_size": config.size,
        "special_tokens": list(SPECIALS),
        "initial_alphabet": sorted(pre_tokenizers.ByteLevel.alphabet()),
        "show_progress": False,
    }
    trainer: Any
    if config.kind == "bpe":
        library, trainer = _pieces(models.BPE()), trainers.BpeTrainer(**options)
    else:
        unigram = trainers.UnigramTrainer(unk_token=SPECIALS[UNK], **options)
        library, trainer = _pieces(models.Unigram()), unigram
    if show_progress and hasattr(trainer, "progress_format"):
        trainer.show_progress, trainer.progress_format = True, "json"
    if sentences:
        library.normalizer = normalizers.Prepend(" ")
        library.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    try:
        with THREADS:
            library.train_from_iterator(texts, trainer)
    except Exception as error:
        if type(error) is not Exception:  # raised while reading the texts; the library raises bare Exception
            raise
        raise ConfigError(f"tokenizer: training failed: {error}; a smaller size or more text may help") from None
    # Training registers the special tokens to be matched in text. Without them text never becomes a control symbol.
    tree = json.loads(library.to_str())
    tree["added_tokens"] = []
    if config.kind == "unigram":
        tree["model"]["vocab"] = _in_order(tree["model"]["vocab"])
    return Tokenizer(Library.from_str(json.dumps(tree, ensure_ascii=False)))


def _in_order(vocabulary: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return unigram pieces in a deterministic order.

    The trainer sums in the order of a hash table, so the last digits of scores vary. Bytes that it never saw get the
    lowest scores, in steps of 0.0001, in that order too. Here they get these scores in the order of bytes.
    """
    rest = [(name, round(score, 9)) for name, score in vocabulary[len(SPECIALS) :]]
    scores = sorted(score for name, score in rest if len(name) == 1)
    steps = {score for pair in pairwise(scores) for score in pair if abs(pair[1] - pair[0] - 1e-4) < 1e-7}
    unseen = {name: score for name, score in rest if len(name) == 1 and score in steps}
    moved = dict(zip(sorted(unseen), sorted(unseen.values(), reverse=True), strict=True))
    ordered = [(name, moved.get(name, score)) for name, score in rest]
    return [*vocabulary[: len(SPECIALS)], *sorted(ordered, key=lambda item: (-item[1], item[0]))]


def _pieces(model: Any) -> Library:
    library = Library(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return library


def _closed(symbols: Sequence[str], kind: Literal["characters", "words"]) -> Tokenizer:
    library = Library(models.WordLevel(vocab=_numbered(symbols), unk_token=SPECIALS[UNK]))
    if kind == "characters":
        library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        library.decoder = decoders.Fuse()
    else:
        # The blank before a word is part of it: "forty-one" is " forty", "-", "one". Joined, they are the text again.
        blanks = normalizers.Replace(Regex(r"\s+"), " ")
        library.normalizer = normalizers.Sequence([blanks, normalizers.Strip(), normalizers.Prepend(" ")])
        library.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?[^ -]+| ?-"), "removed", invert=True)
        library.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return Tokenizer(library)


def _numbered(symbols: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate([*SPECIALS, *symbols])}


def _most_common(counts: "Counter[str]", size: int) -> list[str]:
    by_count = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
    return sorted(by_count[: size - len(SPECIALS)])


def control_name(name: str) -> str:
    """Return the name of a control symbol, with blanks inside, which no piece of text has."""
    return f"< {name} >"


def _is_control(name: str) -> bool:
    return len(name) > 3 and name.startswith("< ") and name.endswith(" >")


def _ends_words_at_blanks(library: Library | SentencePieces | Pictures) -> bool:
    """Return whether a text is split into words as by GPT-2, without any change before."""
    if not isinstance(library, Library):
        return False
    words = library.pre_tokenizer
    plain = isinstance(words, pre_tokenizers.ByteLevel) and words.use_regex and not words.add_prefix_space
    return plain and library.normalizer is None and not library.get_added_tokens_decoder()


def _kind_of(library: Library | SentencePieces | Pictures) -> AnyKind:
    if isinstance(library, SentencePieces | Pictures):
        return "sentencepiece" if isinstance(library, SentencePieces) else "pictures"
    model = library.model
    if isinstance(model, models.WordPiece):
        return "wordpiece"
    if isinstance(model, models.Unigram):
        return "unigram"
    if isinstance(model, models.WordLevel):
        alone = library.normalizer is None and isinstance(library.pre_tokenizer, pre_tokenizers.Split)
        return "characters" if alone else "words"
    if isinstance(model, models.BPE):
        return "bytes" if sum(not _is_control(name) for name in library.get_vocab()) == BYTES else "bpe"
    raise ValueError(f"{type(model).__name__} is not one of BPE, Unigram, WordLevel, WordPiece")


def _character_table(vocabulary: dict[str, int]) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return a table of ids by code point."""
    known = {ord(name): number for name, number in vocabulary.items() if len(name) == 1}
    table = np.full(max(known, default=0) + 1, UNK, dtype=np.int64)
    table[list(known)] = list(known.values())
    return table
