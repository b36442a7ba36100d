"""The search for the best targets: batches of similar sources, each decoded by greedy, beam or constrained search."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from torch import Tensor

from allyouneed.decode.base import Hypothesis, device_of, generating, new_token_limit, pack
from allyouneed.decode.beam import Beams, SearchConfig
from allyouneed.decode.constrained import ConstrainedBeams, rows_for
from allyouneed.decode.greedy import greedy_batch
from allyouneed.decode.phrases import TokenConstraint, contains_phrases
from allyouneed.decode.shortlist_head import BatchShortlist
from allyouneed.decode.threads import kernel_threads, run_concurrently, worker_count
from allyouneed.models import Model
from allyouneed.shortlist.table import Shortlist

FREE = TokenConstraint()


def search(
    model: Model,
    sources: Sequence[Sequence[int]],
    config: SearchConfig,
    progress: Callable[[int], None] | None = None,
    shortlist: Shortlist | None = None,
    prefix: Sequence[int] = (),
    constraints: Sequence[TokenConstraint] | None = None,
    begins_word_V: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """Return the n best targets of each source, best first. All begin with `prefix`, which is not returned.

    `progress` is called after each batch with its number of sources. With a shortlist, a target has only tokens that it
    allows for the source, and probabilities are among those.

    `constraints`: what the target of each source must contain and begin with. A prefix of a constraint is returned, but
    it does not count for scores and lengths. Targets are searched for without the required phrases first; those that
    lack some are searched for again, with all phrases and without the shortlist.
    `begins_word_V`: the tokens that do not continue a word; None: all of them.
    """
    results = [[Hypothesis([], 0.0, 0.0, finished=False)] for _ in sources]  # returned if the maximum length is 0
    wanted = constraints or [FREE] * len(sources)
    with generating(model):
        if config.max_length == 0:
            return results
        run = _Run(model, sources, wanted, config, shortlist, prefix, begins_word_V)
        for constrained in (False, True):  # a target of the first search is the best one if it has all phrases
            items = [item for item, found in enumerate(results) if not constrained or not run.meets(item, found)]
            with closing(run.decode(items, constrained)) as decoded:  # `progress` may raise
                for batch, found in decoded:
                    for item, hypotheses in zip(batch, found, strict=True):
                        begin = wanted[item].prefix
                        results[item] = [replace(one, ids=[*begin, *one.ids]) if begin else one for one in hypotheses]
                    done = [item for item in batch if constrained or run.meets(item, results[item])]
                    if progress is not None and done:
                        progress(len(done))
    return results


@dataclass(frozen=True)
class _Run:
    """One call of `search`."""

    model: Model
    sources: Sequence[Sequence[int]]
    wanted: Sequence[TokenConstraint]
    config: SearchConfig
    shortlist: Shortlist | None
    prefix: Sequence[int]
    begins_word_V: Tensor | None

    def meets(self, item: int, found: Sequence[Hypothesis]) -> bool:
        """Return whether all hypotheses contain the required phrases."""
        phrases, words_V = self.wanted[item].phrases, self.begins_word_V
        return not phrases or all(
            one.finished and contains_phrases(phrases, one.ids, lambda token: words_V is None or bool(words_V[token]))
            for one in found
        )

    def decode(self, items: Sequence[int], constrained: bool) -> Generator[tuple[list[int], list[list[Hypothesis]]]]:
        """Yield batches of items with their hypotheses, as they are found."""
        device, groups = device_of(self.model), dict[tuple[int, int], list[int]]()
        for item in items:  # a batch has equally many rows and prefix tokens
            one = self.wanted[item]
            rows = rows_for(one, self.config) if constrained else self.config.beam
            groups.setdefault((rows, len(one.prefix)), []).append(item)
        batches = []
        for (rows, _), grouped in groups.items():
            lengths = [len(self.sources[item]) for item in grouped]
            packed = pack(lengths, rows, self.config.batch_tokens, worker_count(device))
            batches += [[grouped[place] for place in batch] for batch in packed]
        return run_concurrently(lambda batch: self._decode_batch(batch, constrained), batches, device)

    def _decode_batch(self, batch: list[int], constrained: bool) -> list[list[Hypothesis]]:
        model, config = self.model, self.config
        chosen, given = [self.sources[item] for item in batch], [self.wanted[item] for item in batch]
        prefixes = [(*self.prefix, *one.prefix) for one in given]
        limits = [
            new_token_limit(model, config.limit(source), begin, source)
            for source, begin in zip(chosen, prefixes, strict=True)
        ]
        if constrained:
            found = ConstrainedBeams(model, chosen, limits, config, prefixes, given, self.begins_word_V)
            with kernel_threads(model, len(chosen) * found.rows):
                return found.run()
        allowed = None if self.shortlist is None else BatchShortlist(model, self.shortlist, chosen, config.beam)
        if config.beam == 1:
            return greedy_batch(model, chosen, limits, config.length_penalty, allowed, prefixes)
        beams = Beams(model, chosen, limits, config, allowed, prefixes)
        with kernel_threads(model, len(chosen) * config.beam):
            return beams.run()
