"""The search for the best targets: batches of similar sources, each decoded by greedy, beam or constrained search."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from torch import Tensor

from allyouneed.decode.base import Hypothesis, device_of, generating, new_token_limit, pack
from allyouneed.decode.beam import Beams, SearchConfig
from allyouneed.decode.constrained import ConstrainedBeams, rows_for
from allyouneed.decode.greedy import greedy_batch
from allyouneed.decode.phrases import TokenConstraint
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
    it does not count for scores and lengths. A target with required phrases is searched for without the shortlist.
    `begins_word_V`: the tokens that do not continue a word; None: all of them.
    """
    results = [[Hypothesis([], 0.0, 0.0, finished=False)] for _ in sources]  # returned if the maximum length is 0
    wanted = constraints or [FREE] * len(sources)
    with generating(model):
        if config.max_length == 0:
            return results
        device = device_of(model)

        def decode(batch: list[int]) -> list[list[Hypothesis]]:
            chosen, given = [sources[item] for item in batch], [wanted[item] for item in batch]
            prefixes = [(*prefix, *one.prefix) for one in given]
            limits = [
                new_token_limit(model, config.limit(source), begin, source)
                for source, begin in zip(chosen, prefixes, strict=True)
            ]
            if given[0].phrases:
                constrained = ConstrainedBeams(model, chosen, limits, config, prefixes, given, begins_word_V)
                with kernel_threads(model, len(chosen) * constrained.rows):
                    return constrained.run()
            allowed = None if shortlist is None else BatchShortlist(model, shortlist, chosen, config.beam)
            if config.beam == 1:
                return greedy_batch(model, chosen, limits, config.length_penalty, allowed, prefixes)
            beams = Beams(model, chosen, limits, config, allowed, prefixes)
            with kernel_threads(model, len(chosen) * config.beam):
                return beams.run()

        batches = _batches(sources, wanted, config, worker_count(device))
        with closing(run_concurrently(decode, batches, device)) as decoded:  # `progress` may raise
            for batch, found in decoded:
                for item, hypotheses in zip(batch, found, strict=True):
                    begin = wanted[item].prefix
                    results[item] = (
                        [replace(one, ids=[*begin, *one.ids]) for one in hypotheses] if begin else hypotheses
                    )
                if progress is not None:
                    progress(len(batch))
    return results


def _batches(
    sources: Sequence[Sequence[int]], wanted: Sequence[TokenConstraint], config: SearchConfig, parts: int
) -> list[list[int]]:
    """Return batches of items that are searched for in the same way: with equally many rows and prefix tokens."""
    groups: dict[tuple[bool, int, int], list[int]] = {}
    for item, one in enumerate(wanted):
        rows = rows_for(one, config) if one.phrases else config.beam
        groups.setdefault((bool(one.phrases), rows, len(one.prefix)), []).append(item)
    batches = []
    for (_, rows, _), items in groups.items():
        packed = pack([len(sources[item]) for item in items], rows, config.batch_tokens, parts)
        batches += [[items[place] for place in batch] for batch in packed]
    return batches
