"""Rows of completions whose sources have terms of the model's glossary: searched for instead of sampled.

search for targets with all terms, as /translate does;  return their tokens as a decode worker would
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from allyouneed.decode.base import FIRST_TOKEN, as_float32, device_of, evaluating, start_state
from allyouneed.decode.phrases import TokenConstraint, begins_word, encode_constraint
from allyouneed.decode.running_batch import GeneratedToken, Row
from allyouneed.decode.target_search import search
from allyouneed.models import Model
from allyouneed.serve.backend import Backend
from allyouneed.serve.engine import Deadline
from allyouneed.serve.models import Served
from allyouneed.serve.text_search import largest_search
from allyouneed.serve.worker import BatchOperation
from allyouneed.text.glossary import Constraint, RequiredPhrase
from allyouneed.text.specials import EOS


class SearchedRow(NamedTuple):
    """What a row must contain, and which of the best targets of its source it is."""

    phrases: tuple[RequiredPhrase, ...]
    rank: int


class _Item(NamedTuple):
    row: Row
    constraint: TokenConstraint
    rank: int


async def search_rows(
    backend: Backend, served: Served, rows: Mapping[Row, SearchedRow], most: int, deadline: Deadline
) -> list[GeneratedToken]:
    """Return all tokens of the rows, one row after the other. `most`: targets of one source."""
    target, bundle = served.bundle.codec.target, served.bundle
    assert target is not None
    config = served.search.model_copy(update={"n_best": most, "beam": max(served.search.beam, most)})
    wanted = [Constraint(one.phrases) for one in rows.values()]
    largest = await backend.in_thread(largest_search, served, config, wanted)

    def run(items: Sequence[_Item]) -> list[list[GeneratedToken]]:
        sources = [list(item.row.source or ()) for item in items]
        constraints, words_V = [item.constraint for item in items], begins_word(target)
        found = search(bundle.model, sources, config, None, served.shortlist, bundle.codec.prefix, constraints, words_V)
        for item, ranked in zip(items, found, strict=True):
            best = ranked[min(item.rank, len(ranked) - 1)]
            item.row.ids = [*best.ids, EOS] if best.finished or not best.ids else best.ids
        return [_tokens(bundle.model, item.row) for item in items]

    items = [
        _Item(row, encode_constraint(target, constraint), one.rank)
        for (row, one), constraint in zip(rows.items(), wanted, strict=True)
    ]
    operation = BatchOperation(("searched rows", config, largest), run, rows=largest)
    found: list[list[GeneratedToken]] = await backend.engine_of(served).run(operation, items, deadline)
    return [token for of_row in found for token in of_row]


def _tokens(model: Model, row: Row) -> list[GeneratedToken]:
    """Return the ids of a row as generated tokens, with their log-probabilities and alternatives."""
    device, first = device_of(model), [row.begin, *row.prompt]
    with evaluating(model):
        ids_1T = torch.tensor([[*first, *row.ids[:-1]]], device=device)
        x_1TD, _ = model.hidden(ids_1T, start_state(model, [row.source], device))
        logprob_TV = as_float32(model.head(x_1TD[0, len(first) - 1 :])).log_softmax(dim=-1)
        best = logprob_TV[:, FIRST_TOKEN:].topk(min(row.top, logprob_TV.shape[1] - FIRST_TOKEN), dim=-1)
    found: list[GeneratedToken] = []
    for place, token in enumerate(row.ids):
        last = place == len(row.ids) - 1
        numbers = (best.indices[place] + FIRST_TOKEN).tolist()
        top: list[tuple[int, float]] = list(zip(numbers, best.values[place].tolist(), strict=True))
        end: Any = None if not last else "stop" if token == EOS else "length"
        found.append(GeneratedToken(row, token, float(logprob_TV[place, token]), top, end))
    return found
