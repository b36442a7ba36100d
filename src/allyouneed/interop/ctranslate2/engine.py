"""Our search, run by CTranslate2: the same options, the same answers.

Greedy search is the same there. Its beam search keeps the same beginnings alive (the 2 beam best candidates, of which
those that end leave), but it ranks by log P / length^penalty and stops when `beam` hypotheses have ended, whatever is
still alive. Ours ranks by log P / lp (decode/penalty.py) and stops when nothing alive can overtake. So:

- length_penalty 0, one answer: CTranslate2 stops when its best candidate ends, which is the same.
- else: CTranslate2 is asked for *all* that ends within M steps (a patience that is never used up), and at its last step
  it gives what is alive, too. We rank by lp. What is alive bounds what could still come: if that could overtake, the
  sentence is decoded again with a larger M, up to the longest that is permitted. So the answer is the exact one.

CTranslate2 leaves PAD and BOS out *before* the softmax, we after it; log-probabilities are therefore computed once more
for the answers, among all tokens (`Translator.score_batch`), where somebody wants to see them.
"""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from allyouneed.decode import Hypothesis, SearchConfig
from allyouneed.decode.penalty import length_penalty
from allyouneed.errors import ConfigError, DataError
from allyouneed.folder import Bundle
from allyouneed.interop.ctranslate2.files import NEVER_SAID, names_of, write_model
from allyouneed.models.encoder_decoder import EncoderDecoder
from allyouneed.tasks.base import EOS

STRIDE = 8  # steps by which first guesses differ: sentences with one guess are decoded together


class CTranslate2Engine:
    """An encoder-decoder model, opened with CTranslate2."""

    def __init__(self, bundle: Bundle, int8: bool = False) -> None:
        import ctranslate2

        if not isinstance(bundle.model, EncoderDecoder) or bundle.codec.target is None:
            raise ConfigError(f"{bundle.path}: --engine ctranslate2 runs encoder-decoder models; this is another kind")
        sizes, (source, target) = bundle.model.sizes, bundle.codec.both()
        self._source, self._target = names_of(source, sizes.source), names_of(target, sizes.target)
        self._number = {name: number for number, name in enumerate(self._target)}
        precision = "int8" if int8 else "float32"
        with tempfile.TemporaryDirectory(prefix="allyouneed-") as folder:
            write_model(bundle.model, bundle.codec, Path(folder), "int8" if int8 else "float32")
            # One batch on each core, as in decode/spread.py.
            threads = {"inter_threads": torch.get_num_threads(), "intra_threads": 1}
            self._engine: Any = ctranslate2.Translator(folder, compute_type=precision, **threads)

    def search(
        self,
        sources: Sequence[Sequence[int]],
        config: SearchConfig,
        progress: Callable[[int], None] | None = None,
        exact: bool = True,
    ) -> list[list[Hypothesis]]:
        """What `decode.search` gives. Without `exact`, log-probabilities are those without PAD and BOS."""
        found: dict[int, list[Hypothesis]] = {}
        if config.max_length == 0:
            return [[Hypothesis([], 0.0, 0.0, finished=False)] for _ in sources]
        limits = [config.limit(source) for source in sources]
        alike = max(limits, default=0) if _stops_alike(config) else None
        steps = [
            alike or _first_guess(len(source), limit, config) for source, limit in zip(sources, limits, strict=True)
        ]
        while len(found) < len(sources):
            for guess in sorted({steps[item] for item in range(len(sources)) if item not in found}):
                items = [item for item in range(len(sources)) if item not in found and steps[item] == guess]
                answers = self._decode([sources[item] for item in items], guess, config)
                done = 0
                for item, every in zip(items, answers, strict=True):
                    best = settled(every, guess, limits[item], config)
                    if best is None:
                        steps[item] = min(limits[item], 2 * guess)
                    else:
                        found[item], done = best, done + 1
                if progress is not None and done:
                    progress(done)
        results = [found[item] for item in range(len(sources))]
        return self._rescored(sources, results, config) if exact else results

    def _decode(self, sources: Sequence[Sequence[int]], steps: int, config: SearchConfig) -> list[list[Hypothesis]]:
        """All that ended within so many steps, and what was alive at the last."""
        options: dict[str, Any] = {"beam_size": config.beam, "length_penalty": 0}
        if not _stops_alike(config):
            most = config.beam * (steps + 1)
            options |= {"patience": steps + 1, "num_hypotheses": most, "length_penalty": 1}
        try:
            found = self._engine.translate_batch(
                [[self._source[number] for number in source] for source in sources],
                max_batch_size=max(1, config.batch_tokens // config.beam),
                batch_type="tokens",
                max_input_length=0,
                max_decoding_length=steps,
                min_decoding_length=0,
                suppress_sequences=NEVER_SAID,
                return_scores=True,
                return_end_token=True,
                **options,
            )
        except (RuntimeError, ValueError) as error:
            raise DataError(f"ctranslate2: {str(error).splitlines()[0]}") from None
        divided = options["length_penalty"] == 1
        return [
            [
                self._hypothesis(words, value * (len(words) if divided else 1))
                for words, value in zip(one.hypotheses, one.scores, strict=True)
            ]
            for one in found
        ]

    def _hypothesis(self, words: Sequence[str], logprob: float) -> Hypothesis:
        ids = [self._number[word] for word in words]
        finished = bool(ids) and ids[-1] == EOS
        return Hypothesis(ids[:-1] if finished else ids, logprob, logprob, finished)

    def _rescored(
        self, sources: Sequence[Sequence[int]], results: list[list[Hypothesis]], config: SearchConfig
    ) -> list[list[Hypothesis]]:
        """The same answers with log-probabilities among all tokens."""
        pairs = [(source, one) for source, best in zip(sources, results, strict=True) for one in best]
        words = [[self._source[number] for number in source] for source, _ in pairs]
        said = [[self._target[number] for number in one.ids] for _, one in pairs]
        batches = {"max_batch_size": config.batch_tokens, "batch_type": "tokens"}
        scored = iter(self._engine.score_batch(words, said, max_input_length=0, **batches))
        return [[_with_logprob(one, next(scored).log_probs, config) for one in best] for best in results]


def _stops_alike(config: SearchConfig) -> bool:
    return config.beam == 1 or (config.length_penalty == 0 and config.n_best == 1)


def _first_guess(source: int, limit: int, config: SearchConfig) -> int:
    """Steps within which a sentence is likely to be settled: the more length is favoured, the more could still come.

    For 500 sentences of Multi30k 4.1 CPU-seconds with alpha 0.6, 7 with 1.2; all steps that are permitted: 13.
    """
    likely = (1 + config.length_penalty / 2) * source + STRIDE
    return min(limit, STRIDE * math.ceil(likely / STRIDE))


def settled(every: Sequence[Hypothesis], steps: int, limit: int, config: SearchConfig) -> list[Hypothesis] | None:
    """The n best; None if something that is alive after so many steps could still be among them.

    Where both stop alike, sentences of different limits are decoded together; one that went beyond its own is none.
    """
    scored = [_scored(one, one.logprob, config) for one in every]
    best = sorted((one for one in scored if one.finished), key=lambda one: -one.score)[: config.n_best]
    alive = sorted((one for one in scored if not one.finished), key=lambda one: -one.logprob)
    if steps == limit:
        return [*best, *alive][: config.n_best]
    if _stops_alike(config):
        return best if best and len(best[0].ids) < limit else None
    # What is alive but was not given is no better than the worst that was given at the last step.
    last = [one.logprob for one in scored if len(one.ids) + one.finished == steps]
    bound = alive[0].logprob if alive else min(last, default=-math.inf)
    can_reach = bound / length_penalty(limit, config.length_penalty)
    return best if len(best) == config.n_best and best[-1].score >= can_reach else None


def _scored(one: Hypothesis, logprob: float, config: SearchConfig) -> Hypothesis:
    length = len(one.ids) + one.finished
    return replace(one, logprob=logprob, score=logprob / length_penalty(length, config.length_penalty))


def _with_logprob(one: Hypothesis, logprobs: Sequence[float], config: SearchConfig) -> Hypothesis:
    """`logprobs` are those of the words and of EOS, which one that was cut does not have."""
    return _scored(one, sum(logprobs) if one.finished else sum(logprobs[: len(one.ids)]), config)
