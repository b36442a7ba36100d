"""Our search, run by CTranslate2: the same options, the same answers.

Greedy search is the same there. Its beam search keeps the same beginnings alive (the 2 beam best candidates, of which
those that end leave), but it ranks by log P / length^penalty and stops when `beam` hypotheses have ended, whatever is
still alive. Ours ranks by log P / lp (decode/penalty.py) and stops when nothing alive can overtake. So:

- length_penalty 0, one answer: CTranslate2 stops when its best candidate ends, which is the same. If none ends in time,
  it gives the most probable of all, we one that ended: such a sentence is decoded again, the other way.
- else: CTranslate2 is asked for *all* that ends within M steps (a patience that is never used up), and at its last step
  it gives what is alive, too. We rank by lp. What is alive bounds what could still come: if that could overtake, the
  sentence is decoded again with a larger M, up to the longest that is permitted. So the answer is the exact one.

CTranslate2 leaves PAD and BOS out *before* the softmax, we after it; log-probabilities are therefore computed once more
for the answers, among all tokens (`score_batch` there), where somebody wants to see them.

Sampling is not ours there: its numbers do not follow from our seed, nor from any alone where several threads draw. At
temperature 0 nothing is drawn, and both say the same.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from allyouneed.decode import Hypothesis, SampleConfig, SearchConfig
from allyouneed.decode.base import new_token_limit
from allyouneed.decode.penalty import length_penalty
from allyouneed.errors import ConfigError
from allyouneed.folder import Bundle
from allyouneed.interop.ctranslate2.runtime import open_runtime
from allyouneed.text.specials import EOS

STRIDE = 8  # steps by which first guesses differ: sentences with one guess are decoded together


def refuse_sampling(config: SampleConfig) -> None:
    """Whoever generates with CTranslate2 cannot have our samples."""
    if config.temperature != 0:
        raise ConfigError(
            f"--temperature {config.temperature:g}: --engine ctranslate2 would draw other texts than --seed means; "
            "--temperature 0 (always the most probable token) says the same there, --engine torch draws"
        )


class CTranslate2Engine:
    """An encoder-decoder model or a decoder, opened with CTranslate2."""

    def __init__(self, bundle: Bundle, int8: bool = False) -> None:
        self._runtime, self._model = open_runtime(bundle, int8), bundle.model

    def stream(self, ids: Sequence[int], config: SampleConfig) -> Iterator[int]:
        """What `decode.stream` gives at temperature 0: to a source or, if the model has none, after a prompt."""
        refuse_sampling(config)
        steps = new_token_limit(self._model, config.max_length, (), ids)
        return self._runtime.stream(ids, steps) if steps else iter(())

    def search(
        self,
        sources: Sequence[Sequence[int]],
        config: SearchConfig,
        progress: Callable[[int], None] | None = None,
        exact: bool = True,
    ) -> list[list[Hypothesis]]:
        """What `decode.search` gives. Without `exact`, log-probabilities are those without PAD and BOS."""
        if config.max_length == 0:
            return [[Hypothesis([], 0.0, 0.0, finished=False)] for _ in sources]
        limits = [new_token_limit(self._model, config.limit(source), (), source) for source in sources]
        found: dict[int, list[Hypothesis]] = {}
        waiting = dict(enumerate(self._first_tries(sources, limits, config)))
        while waiting:
            for tried in sorted(set(waiting.values())):
                items = [item for item, one in waiting.items() if one == tried]
                answers = self._decode([sources[item] for item in items], tried, config)
                for item, every in zip(items, answers, strict=True):
                    best = settled(every, tried, limits[item], config)
                    if best is None:
                        waiting[item] = _again(tried, limits[item], config)
                    else:
                        found[item] = best
                        del waiting[item]
                done = sum(item in found for item in items)
                if progress is not None and done:
                    progress(done)
        results = [found[item] for item in range(len(sources))]
        return self._rescored(sources, results, config) if exact else results

    def _first_tries(
        self, sources: Sequence[Sequence[int]], limits: Sequence[int], config: SearchConfig
    ) -> list["Try"]:
        alike = config.beam == 1 or (config.length_penalty == 0 and config.n_best == 1)
        # A decoder's positions are those of source and target together: how many are left differs by source.
        if alike and (self._model.kind == "encoder-decoder" or self._model.longest is None):
            return [Try(max(limits), alike)] * len(sources) if sources else []
        both = zip(sources, limits, strict=True)
        return [Try(_first_guess(len(source), limit, config), alike) for source, limit in both]

    def _decode(self, sources: Sequence[Sequence[int]], tried: "Try", config: SearchConfig) -> list[list[Hypothesis]]:
        """All that ended within so many steps, and what was alive at the last; or, by its own rule, the best alone."""
        options: dict[str, Any] = {"beam_size": config.beam, "length_penalty": 0}
        if not tried.alike:
            most = config.beam * (tried.steps + 1)
            options |= {"patience": tried.steps + 1, "num_hypotheses": most, "length_penalty": 1}
        found = self._runtime.decode(sources, tried.steps, max(1, config.batch_tokens // config.beam), **options)
        divided = options["length_penalty"] == 1
        return [[_hypothesis(ids, value * (len(ids) if divided else 1)) for ids, value in one] for one in found]

    def _rescored(
        self, sources: Sequence[Sequence[int]], results: list[list[Hypothesis]], config: SearchConfig
    ) -> list[list[Hypothesis]]:
        """The same answers with log-probabilities among all tokens; but for one that ends with the last position, which
        CTranslate2 would have to read to score it."""
        pairs = [(source, one) for source, best in zip(sources, results, strict=True) for one in best]
        fits = [(source, one.ids) for source, one in pairs if self._fits(source, one.ids)]
        scored = iter(
            self._runtime.score([source for source, _ in fits], [ids for _, ids in fits], config.batch_tokens)
        )
        again = iter(
            _with_logprob(one, next(scored), config) if self._fits(source, one.ids) else one for source, one in pairs
        )
        return [[next(again) for _ in best] for best in results]

    def _fits(self, source: Sequence[int], ids: Sequence[int]) -> bool:
        return new_token_limit(self._model, len(ids) + 1, (), source) > len(ids)


def _hypothesis(ids: Sequence[int], logprob: float) -> Hypothesis:
    finished = bool(ids) and ids[-1] == EOS
    return Hypothesis(list(ids[:-1] if finished else ids), logprob, logprob, finished)


class Try(NamedTuple):
    """How CTranslate2 is asked: for how many steps, and whether it stops by its own rule, where that is ours."""

    steps: int
    alike: bool


def _again(tried: Try, limit: int, config: SearchConfig) -> Try:
    """The next, for a sentence that is not settled. One that is cut at its limit needs what ended before, too: we rank
    that first, and CTranslate2's own rule gives the most probable."""
    if tried.steps < limit:
        return Try(min(limit, 2 * tried.steps), tried.alike)
    return Try(limit, alike=config.beam == 1)


def _first_guess(source: int, limit: int, config: SearchConfig) -> int:
    """Steps within which a sentence is likely to be settled: the more length is favoured, the more could still come.

    For 500 sentences of Multi30k 4.1 CPU-seconds with alpha 0.6, 7 with 1.2; all steps that are permitted: 13.
    """
    likely = (1 + config.length_penalty / 2) * source + STRIDE
    return min(limit, STRIDE * math.ceil(likely / STRIDE))


def settled(every: Sequence[Hypothesis], tried: Try, limit: int, config: SearchConfig) -> list[Hypothesis] | None:
    """The n best; None if something else could still be among them.

    Where both stop alike, sentences of different limits are decoded together; one that went beyond its own is none.
    """
    scored = [_scored(one, one.logprob, config) for one in every]
    best = sorted((one for one in scored if one.finished), key=lambda one: -one.score)[: config.n_best]
    alive = sorted((one for one in scored if not one.finished), key=lambda one: -one.logprob)
    if tried.alike and (config.beam > 1 or tried.steps != limit):
        return best if best and len(best[0].ids) < limit else None
    if tried.steps == limit:
        return [*best, *alive][: config.n_best]
    # What is alive but was not given is no better than the worst that was given at the last step.
    last = [one.logprob for one in scored if len(one.ids) + one.finished == tried.steps]
    bound = alive[0].logprob if alive else min(last, default=-math.inf)
    can_reach = bound / length_penalty(limit, config.length_penalty)
    return best if len(best) == config.n_best and best[-1].score >= can_reach else None


def _scored(one: Hypothesis, logprob: float, config: SearchConfig) -> Hypothesis:
    length = len(one.ids) + one.finished
    return replace(one, logprob=logprob, score=logprob / length_penalty(length, config.length_penalty))


def _with_logprob(one: Hypothesis, logprobs: Sequence[float], config: SearchConfig) -> Hypothesis:
    """`logprobs` are those of the words and of EOS, which one that was cut does not have."""
    return _scored(one, sum(logprobs) if one.finished else sum(logprobs[: len(one.ids)]), config)
