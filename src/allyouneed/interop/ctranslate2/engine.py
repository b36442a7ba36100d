"""Our search, run by CTranslate2: the same options, the same results.

Greedy search is identical. CTranslate2's beam search keeps the same prefixes alive (the 2 beam best candidates, minus
those that end). But it ranks by log P / length^penalty and stops when `beam` hypotheses have ended, whatever is still
alive. Ours ranks by log P / lp (decode/penalty.py) and stops when no live prefix can overtake. So:

- length_penalty 0, one result: CTranslate2 stops when its best candidate ends, as we do. If none ends in time, it
  returns the most probable prefix, while we return one that ended. Such a sentence is decoded again, as below.
- otherwise: we request *all* hypotheses that end within M steps (with unlimited patience), and rank them by lp. After
  its last step CTranslate2 returns the live prefixes too, which bound the scores of longer hypotheses. If one of those
  could rank higher, the sentence is decoded again with a larger M, up to the maximum length. So the result is exact.

CTranslate2 removes PAD and BOS *before* the softmax, we after it. Where log-probabilities are shown, they are therefore
recomputed for the results among all tokens (`score_batch`).

Targets that begin with the tag of a language (`Codec.prefix`) have no probability for it there, either.

Sampling is not supported: CTranslate2's samples do not follow from our seed, nor from any seed if several threads draw.
At temperature 0 nothing is drawn, and both engines agree.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from allyouneed.decode import Hypothesis, SampleConfig, SearchConfig, search
from allyouneed.decode.base import new_token_limit
from allyouneed.decode.penalty import length_penalty
from allyouneed.errors import ConfigError
from allyouneed.folder import Bundle
from allyouneed.interop.ctranslate2.runtime import open_runtime
from allyouneed.text.specials import BOS, EOS, PAD

STRIDE = 8  # granularity of first guesses: sentences with equal guesses share a batch


def refuse_sampling(config: SampleConfig) -> None:
    """Raise ConfigError unless the temperature is 0."""
    if config.temperature != 0:
        raise ConfigError(
            f"--temperature {config.temperature:g}: --engine ctranslate2 cannot reproduce samples of --seed; "
            "use --temperature 0 (always the most probable token) or --engine torch"
        )


class CTranslate2Engine:
    """An encoder-decoder or decoder, opened with CTranslate2."""

    def __init__(self, bundle: Bundle, int8: bool = False) -> None:
        self._runtime, self._model, self._prefix = open_runtime(bundle, int8), bundle.model, bundle.codec.prefix

    def stream(self, ids: Sequence[int], config: SampleConfig, begin: int = BOS) -> Iterator[int]:
        """Yield what `decode.stream` yields at temperature 0, for a source or a prompt."""
        refuse_sampling(config)
        steps = new_token_limit(self._model, config.max_length, self._prefix, ids)
        return self._runtime.stream(ids, steps, begin, config.ends) if steps else iter(())

    def search(
        self,
        sources: Sequence[Sequence[int]],
        config: SearchConfig,
        progress: Callable[[int], None] | None = None,
        exact: bool = True,
    ) -> list[list[Hypothesis]]:
        """Return what `decode.search` returns. Without `exact`, log-probabilities exclude PAD and BOS."""
        if config.max_length == 0:
            return [[Hypothesis([], 0.0, 0.0, finished=False)] for _ in sources]
        limits = [new_token_limit(self._model, config.limit(source), self._prefix, source) for source in sources]
        found = self._found_here(sources, config)
        if progress is not None and found:
            progress(len(found))
        tries = self._first_tries(sources, limits, config)
        waiting = {item: tried for item, tried in enumerate(tries) if item not in found}
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

    def _found_here(self, sources: Sequence[Sequence[int]], config: SearchConfig) -> dict[int, list[Hypothesis]]:
        """Return our own search's results for targets that might end right after the tag of a language.

        CTranslate2 gives up such a hypothesis, and its place in the beam, unless it is the best of its step. A search
        of one step shows it: padding stands for the end.
        """
        if not self._runtime.counted or config.beam == 1:
            return {}
        options = {"beam_size": config.beam, "num_hypotheses": config.beam, "length_penalty": 0}
        probed = self._runtime.decode(sources, 1, max(1, config.batch_tokens // config.beam), **options)
        items = [item for item, ranked in enumerate(probed) if any(ids == [PAD] for ids, _ in ranked)]
        own = search(self._model, [sources[item] for item in items], config, prefix=self._prefix)
        return dict(zip(items, own, strict=True))

    def _first_tries(
        self, sources: Sequence[Sequence[int]], limits: Sequence[int], config: SearchConfig
    ) -> list["Try"]:
        alike = config.beam == 1 or (config.length_penalty == 0 and config.n_best == 1)
        # In a decoder, source and target share the positions, so the number left depends on the source.
        if alike and (self._model.kind == "encoder-decoder" or self._model.longest is None):
            return [Try(max(limits), alike)] * len(sources) if sources else []
        both = zip(sources, limits, strict=True)
        return [Try(_first_guess(len(source), limit, config), alike) for source, limit in both]

    def _decode(self, sources: Sequence[Sequence[int]], tried: "Try", config: SearchConfig) -> list[list[Hypothesis]]:
        """Return the hypotheses that ended in time and the live ones at the end; or the best by CTranslate2's rule."""
        options: dict[str, Any] = {"beam_size": config.beam, "length_penalty": 0}
        if not tried.alike:
            most = config.beam * (tried.steps + 1)
            options |= {"patience": tried.steps + 1, "num_hypotheses": most, "length_penalty": 1}
        found = self._runtime.decode(sources, tried.steps, max(1, config.batch_tokens // config.beam), **options)
        divided, more = options["length_penalty"] == 1, self._runtime.counted
        return [[_hypothesis(ids, value * (len(ids) + more if divided else 1)) for ids, value in one] for one in found]

    def _rescored(
        self, sources: Sequence[Sequence[int]], results: list[list[Hypothesis]], config: SearchConfig
    ) -> list[list[Hypothesis]]:
        """Recompute log-probabilities among all tokens. Skip results that fill the last position, which CTranslate2
        would have to read to score them."""
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
        return new_token_limit(self._model, len(ids) + 1, self._prefix, source) > len(ids)


def _hypothesis(ids: Sequence[int], logprob: float) -> Hypothesis:
    finished = bool(ids) and ids[-1] == EOS
    return Hypothesis(list(ids[:-1] if finished else ids), logprob, logprob, finished)


class Try(NamedTuple):
    """A request to CTranslate2: the number of steps, and whether to stop by its own rule (where it equals ours)."""

    steps: int
    alike: bool


def _again(tried: Try, limit: int, config: SearchConfig) -> Try:
    """Return the next request for an unsettled sentence. At its length limit, a sentence needs the finished hypotheses
    too: we rank those first, while CTranslate2's own rule returns the most probable."""
    if tried.steps < limit:
        return Try(min(limit, 2 * tried.steps), tried.alike)
    return Try(limit, alike=config.beam == 1)


def _first_guess(source: int, limit: int, config: SearchConfig) -> int:
    """Return the steps within which a sentence is likely to be settled; a higher length penalty needs more.

    For 500 sentences of Multi30k: 4.1 CPU-seconds with alpha 0.6, 7 with 1.2; 13 with the maximum number of steps.
    """
    likely = (1 + config.length_penalty / 2) * source + STRIDE
    return min(limit, STRIDE * math.ceil(likely / STRIDE))


def settled(every: Sequence[Hypothesis], tried: Try, limit: int, config: SearchConfig) -> list[Hypothesis] | None:
    """Return the n best hypotheses; None if others could still be among them.

    If both stopping rules agree, sentences with different limits share a batch; one beyond its own limit is discarded.
    """
    scored = [_scored(one, one.logprob, config) for one in every]
    best = sorted((one for one in scored if one.finished), key=lambda one: -one.score)[: config.n_best]
    alive = sorted((one for one in scored if not one.finished), key=lambda one: -one.logprob)
    if tried.alike and (config.beam > 1 or tried.steps != limit):
        return best if best and len(best[0].ids) < limit else None
    if tried.steps == limit:
        return [*best, *alive][: config.n_best]
    # Live prefixes that were not returned are no better than the worst one returned at the last step.
    last = [one.logprob for one in scored if len(one.ids) + one.finished == tried.steps]
    bound = alive[0].logprob if alive else min(last, default=-math.inf)
    can_reach = bound / length_penalty(limit, config.length_penalty)
    return best if len(best) == config.n_best and best[-1].score >= can_reach else None


def _scored(one: Hypothesis, logprob: float, config: SearchConfig) -> Hypothesis:
    length = len(one.ids) + one.finished
    return replace(one, logprob=logprob, score=logprob / length_penalty(length, config.length_penalty))


def _with_logprob(one: Hypothesis, logprobs: Sequence[float], config: SearchConfig) -> Hypothesis:
    """Set the log-probability. `logprobs` include EOS, which an unfinished hypothesis lacks."""
    return _scored(one, sum(logprobs) if one.finished else sum(logprobs[: len(one.ids)]), config)
