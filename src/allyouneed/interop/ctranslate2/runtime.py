"""CTranslate2's two classes behind one face, in our ids: Translator runs encoder-decoder models, Generator decoders.

What a model is given is a source or, if it is a language model, the beginning of a text. A decoder reads either as the
beginning of its text: a source with BOS behind it, or BOS with a prompt behind it.
"""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
Hypotheses = list[
    tuple[list[int], float]
]  # hypotheses, with EOS where they ended, each with what CTranslate2 ranks it by


def open_runtime(bundle: Bundle, int8: bool) -> "Runtime":
    """The model of a bundle, written for CTranslate2 and opened there."""
    import ctranslate2

    if not isinstance(bundle.model, EncoderDecoder | Decoder):
        kind = "encoder-decoder and decoder models"
        raise ConfigError(f"{bundle.path}: --engine ctranslate2 runs {kind}; this is another kind")
    precision: Quantization = "int8" if int8 else "float32"
    with tempfile.TemporaryDirectory(prefix="allyouneed-") as folder:
        try:
            write_model(bundle.model, bundle.codec, Path(folder), precision)
        except ConfigError as error:
            raise ConfigError(f"{bundle.path}: {error}") from None
        except OSError as error:  # nobody has named this place, and standard output would be blamed
            raise FolderError(f"{folder}: CTranslate2's weights cannot be written there: {error.strerror}") from None
        # One batch on each core, as in decode/threads.py.
        threads = {"inter_threads": torch.get_num_threads(), "intra_threads": 1}
        opener = ctranslate2.Translator if isinstance(bundle.model, EncoderDecoder) else ctranslate2.Generator
        engine = opener(folder, compute_type=precision, **threads)
    return _Translator(engine, bundle) if opener is ctranslate2.Translator else _Generator(engine, bundle)


class Runtime(ABC):
    """A model in CTranslate2."""

    def __init__(self, engine: Any, bundle: Bundle) -> None:
        assert isinstance(bundle.model, EncoderDecoder | Decoder)
        assert bundle.codec.target is not None
        self.engine = engine
        self.target = names_of(bundle.codec.target, bundle.model.sizes.target)
        self.number = {name: number for number, name in enumerate(self.target)}

    @abstractmethod
    def decode(self, rows: Sequence[Row], steps: int, batch: int, **options: Any) -> list[Hypotheses]:
        """What is found for each within so many steps, in batches of so many tokens."""

    @abstractmethod
    def score(self, rows: Sequence[Row], said: Sequence[Row], batch: int) -> list[list[float]]:
        """log P of each id that is said, and of EOS after them."""

    @abstractmethod
    def stream(self, row: Row, steps: int) -> Iterator[int]:
        """The most probable ids, each as soon as it is known, without EOS."""

    def _numbers(self, words: Sequence[str]) -> list[int]:
        return [self.number[word] for word in words]


@final
class _Translator(Runtime):
    def __init__(self, engine: Any, bundle: Bundle) -> None:
        super().__init__(engine, bundle)
        assert isinstance(bundle.model, EncoderDecoder)
        self.source = names_of(bundle.codec.both()[0], bundle.model.sizes.source)

    def decode(self, rows: Sequence[Row], steps: int, batch: int, **options: Any) -> list[Hypotheses]:
        found = _call(
            self.engine.translate_batch,
            _named(rows, self.source),
            max_input_length=0,
            max_decoding_length=steps,
            min_decoding_length=0,
            **_common_options(batch),
            **options,
        )
        return [list(zip(map(self._numbers, one.hypotheses), one.scores, strict=True)) for one in found]

    def score(self, rows: Sequence[Row], said: Sequence[Row], batch: int) -> list[list[float]]:
        given = _named(rows, self.source), _named(said, self.target)
        found = _call(self.engine.score_batch, *given, max_input_length=0, max_batch_size=batch, batch_type="tokens")
        return [one.log_probs for one in found]

    def stream(self, row: Row, steps: int) -> Iterator[int]:
        if list(row) in ([], [EOS]):  # commands that search leave such texts out
            raise DataError("an empty text: --engine ctranslate2 says nothing to it; --engine torch does")
        limits = {"max_decoding_length": steps, "min_decoding_length": 0, "max_input_length": 0}
        (words,) = _named([row], self.source)
        return _ids(self.engine.generate_tokens(words, suppress_sequences=SUPPRESSED, **limits))


@final
class _Generator(Runtime):
    def __init__(self, engine: Any, bundle: Bundle) -> None:
        super().__init__(engine, bundle)
        self._has_source = bundle.codec.source is not None

    def decode(self, rows: Sequence[Row], steps: int, batch: int, **options: Any) -> list[Hypotheses]:
        # Of beginnings of different lengths CTranslate2 reads what all have at once and makes the search say the rest,
        # which beam search does not survive: some of its first hypotheses are lost. So equally long ones go together.
        limits = {"max_length": steps, "min_length": 0, "include_prompt_in_result": False}
        alike: dict[int, list[int]] = {}
        for item, row in enumerate(rows):
            alike.setdefault(len(row), []).append(item)
        begun = _named(self._begun(rows), self.target)
        waiting: dict[int, Any] = {}
        for items in alike.values():  # none waits for another
            given = [begun[item] for item in items]
            more = _call(
                self.engine.generate_batch, given, asynchronous=True, **limits, **_common_options(batch), **options
            )
            waiting |= dict(zip(items, more, strict=True))
        found = [_call(waiting[item].result) for item in range(len(rows))]
        return [list(zip(one.sequences_ids, one.scores, strict=True)) for one in found]

    def score(self, rows: Sequence[Row], said: Sequence[Row], batch: int) -> list[list[float]]:
        begun = self._begun(rows)
        texts = [[*given, *ids, EOS] for given, ids in zip(begun, said, strict=True)]
        batches = {"max_input_length": 0, "max_batch_size": batch, "batch_type": "tokens"}
        found = _call(self.engine.score_batch, _named(texts, self.target), **batches)
        return [one.log_probs[len(given) - 1 :] for given, one in zip(begun, found, strict=True)]

    def stream(self, row: Row, steps: int) -> Iterator[int]:
        (words,) = _named(self._begun([row]), self.target)
        return _ids(self.engine.generate_tokens(words, suppress_sequences=SUPPRESSED, max_length=steps, min_length=0))

    def _begun(self, rows: Sequence[Row]) -> list[list[int]]:
        return [[*row, BOS] if self._has_source else [BOS, *row] for row in rows]


def _named(rows: Sequence[Row], names: Sequence[str]) -> list[list[str]]:
    return [[names[number] for number in row] for row in rows]


def _common_options(batch: int) -> dict[str, Any]:
    """What both classes are asked for alike."""
    said = {"suppress_sequences": SUPPRESSED, "return_scores": True, "return_end_token": True}
    return {"max_batch_size": batch, "batch_type": "tokens", **said}


def _call(work: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Work of CTranslate2, its complaints in one line."""
    with _as_data_errors():
        return work(*given, **options)


def _ids(steps: Iterator[Any]) -> Iterator[int]:
    with _as_data_errors():
        for step in steps:
            if step.token_id != EOS:
                yield step.token_id


@contextmanager
def _as_data_errors() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise DataError(f"ctranslate2: {str(error).splitlines()[0]}") from None
