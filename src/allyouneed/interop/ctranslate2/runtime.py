"""A common interface to CTranslate2's two classes, in our ids: Translator (encoder-decoders) and Generator (decoders).

The input of a model is a source or, for a language model, a prompt. A decoder reads either as a prefix of its text: a
source followed by BOS, or BOS followed by a prompt.
"""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, final

import torch

from allyouneed.errors import ConfigError, DataError, FolderError
from allyouneed.folder import Bundle
from allyouneed.interop.ctranslate2.files import SUPPRESSED, Quantization, names_of, write_model
from allyouneed.models.decoder import Decoder
from allyouneed.models.encoder_decoder import EncoderDecoder
from allyouneed.text.specials import BOS, EOS

Row = Sequence[int]
Hypotheses = list[tuple[list[int], float]]  # ids, with EOS if finished, and CTranslate2's ranking score


def open_runtime(bundle: Bundle, int8: bool) -> "Runtime":
    """Write the model of a bundle for CTranslate2 and open it there."""
    import ctranslate2

    if not isinstance(bundle.model, EncoderDecoder | Decoder):
        kind = "encoder-decoder and decoder models"
        raise ConfigError(f"{bundle.path}: --engine ctranslate2 runs {kind} only; use --engine torch")
    precision: Quantization = "int8" if int8 else "float32"
    with tempfile.TemporaryDirectory(prefix="allyouneed-") as folder:
        try:
            write_model(bundle.model, bundle.codec, Path(folder), precision)
        except ConfigError as error:
            raise ConfigError(f"{bundle.path}: {error}") from None
        except OSError as error:  # a temporary folder: name it in the message
            raise FolderError(f"{folder}: cannot write CTranslate2's weights: {error.strerror}") from None
        # One batch per core, as in decode/threads.py.
        threads = {"inter_threads": torch.get_num_threads(), "intra_threads": 1}
        opener = ctranslate2.Translator if isinstance(bundle.model, EncoderDecoder) else ctranslate2.Generator
        engine = opener(folder, compute_type=precision, **threads)
    return _Translator(engine, bundle) if opener is ctranslate2.Translator else _Generator(engine, bundle)


class Runtime(ABC):
    """A model opened in CTranslate2."""

    def __init__(self, engine: Any, bundle: Bundle) -> None:
        assert isinstance(bundle.model, EncoderDecoder | Decoder)
        assert bundle.codec.target is not None
        self.engine = engine
        self.target = names_of(bundle.codec.target, bundle.model.sizes.target)
        self.number = {name: number for number, name in enumerate(self.target)}
        self.prefix = list(bundle.codec.prefix)  # of every target, without a probability: the tag of a language
        self.counted = 0  # tokens of the prefix that a ranking score is divided by, too

    @abstractmethod
    def decode(self, rows: Sequence[Row], steps: int, batch: int, **options: Any) -> list[Hypotheses]:
        """Return the hypotheses of each row within `steps` steps, in batches of `batch` tokens, without the prefix."""

    @abstractmethod
    def score(self, rows: Sequence[Row], targets: Sequence[Row], batch: int) -> list[list[float]]:
        """Return the log-probability of each target id and of the final EOS."""

    @abstractmethod
    def stream(self, row: Row, steps: int, begin: int, ends: Row) -> Iterator[int]:
        """Yield the ids of a greedy search as they are found, without EOS.

        A language model reads `begin` first, and also stops at one of `ends`.
        """

    def _numbers(self, words: Sequence[str]) -> list[int]:
        return [self.number[word] for word in words]


@final
class _Translator(Runtime):
    def __init__(self, engine: Any, bundle: Bundle) -> None:
        super().__init__(engine, bundle)
        assert isinstance(bundle.model, EncoderDecoder)
        self.source = names_of(bundle.codec.both()[0], bundle.model.sizes.source)
        self.counted = len(self.prefix)

    def decode(self, rows: Sequence[Row], steps: int, batch: int, **options: Any) -> list[Hypotheses]:
        more = len(self.prefix)  # part of a hypothesis, and of its length
        found = _call(
            self.engine.translate_batch,
            _named(rows, self.source),
            target_prefix=_named([self.prefix], self.target) * len(rows) if more else None,
            max_input_length=0,
            max_decoding_length=steps + more,
            min_decoding_length=0,
            **_common_options(batch),
            **options,
        )
        return [
            [(self._numbers(words[more:]), value) for words, value in zip(one.hypotheses, one.scores, strict=True)]
            for one in found
        ]

    def score(self, rows: Sequence[Row], targets: Sequence[Row], batch: int) -> list[list[float]]:
        given = _named(rows, self.source), _named([[*self.prefix, *ids] for ids in targets], self.target)
        found = _call(self.engine.score_batch, *given, max_input_length=0, max_batch_size=batch, batch_type="tokens")
        return [one.log_probs[len(self.prefix) :] for one in found]

    def stream(self, row: Row, steps: int, begin: int, ends: Row) -> Iterator[int]:
        if list(row) in ([], [EOS]):  # searching commands skip empty texts
            raise DataError("empty text: --engine ctranslate2 generates nothing for it; use --engine torch")
        more = len(self.prefix)
        limits = {"max_decoding_length": steps + more, "min_decoding_length": 0, "max_input_length": 0}
        (words,), (prefix,) = _named([row], self.source), _named([self.prefix], self.target)
        options = {"target_prefix": prefix or None, "suppress_sequences": SUPPRESSED, **limits}
        return islice(_ids(self.engine.generate_tokens(words, **options), {EOS}), more, None)


@final
class _Generator(Runtime):
    def __init__(self, engine: Any, bundle: Bundle) -> None:
        super().__init__(engine, bundle)
        self._has_source = bundle.codec.source is not None

    def decode(self, rows: Sequence[Row], steps: int, batch: int, **options: Any) -> list[Hypotheses]:
        # For prompts of different lengths CTranslate2 reads their common length at once and forces the rest during the
        # search, which loses some first hypotheses of a beam search. So only prompts of equal length share a batch.
        limits = {"max_length": steps, "min_length": 0, "include_prompt_in_result": False}
        alike: dict[int, list[int]] = {}
        for item, row in enumerate(rows):
            alike.setdefault(len(row), []).append(item)
        prefixes = _named(self._prefixes(rows), self.target)
        waiting: dict[int, Any] = {}
        for items in alike.values():  # asynchronously
            given = [prefixes[item] for item in items]
            more = _call(
                self.engine.generate_batch, given, asynchronous=True, **limits, **_common_options(batch), **options
            )
            waiting |= dict(zip(items, more, strict=True))
        found = [_call(waiting[item].result) for item in range(len(rows))]
        return [list(zip(one.sequences_ids, one.scores, strict=True)) for one in found]

    def score(self, rows: Sequence[Row], targets: Sequence[Row], batch: int) -> list[list[float]]:
        prefixes = self._prefixes(rows)
        texts = [[*given, *ids, EOS] for given, ids in zip(prefixes, targets, strict=True)]
        batches = {"max_input_length": 0, "max_batch_size": batch, "batch_type": "tokens"}
        found = _call(self.engine.score_batch, _named(texts, self.target), **batches)
        return [one.log_probs[len(given) - 1 :] for given, one in zip(prefixes, found, strict=True)]

    def stream(self, row: Row, steps: int, begin: int, ends: Row) -> Iterator[int]:
        (words,) = _named(self._prefixes([row]) if self._has_source else [[begin, *row]], self.target)
        limits = {"max_length": steps, "min_length": 0, "end_token": [EOS, *ends]}
        return _ids(self.engine.generate_tokens(words, suppress_sequences=SUPPRESSED, **limits), {EOS, *ends})

    def _prefixes(self, rows: Sequence[Row]) -> list[list[int]]:
        return [[*row, BOS, *self.prefix] if self._has_source else [BOS, *row] for row in rows]


def _named(rows: Sequence[Row], names: Sequence[str]) -> list[list[str]]:
    return [[names[number] for number in row] for row in rows]


def _common_options(batch: int) -> dict[str, Any]:
    """Return the options common to both classes."""
    outputs = {"suppress_sequences": SUPPRESSED, "return_scores": True, "return_end_token": True}
    return {"max_batch_size": batch, "batch_type": "tokens", **outputs}


def _call(work: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Call CTranslate2, converting its errors to DataError."""
    with _as_data_errors():
        return work(*given, **options)


def _ids(steps: Iterator[Any], ends: set[int]) -> Iterator[int]:
    with _as_data_errors():
        for step in steps:
            if step.token_id not in ends:
                yield step.token_id


@contextmanager
def _as_data_errors() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise DataError(f"ctranslate2: {str(error).splitlines()[0]}") from None
