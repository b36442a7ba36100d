"""Searches for the translations of many texts: whole texts in sentences, and HTML with alignments.

Each model translates all of its texts at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from allyouneed.decode.align import align
from allyouneed.decode.beam import SearchConfig
from allyouneed.decode.constrained import rows_for
from allyouneed.decode.phrases import can_write, encode_constraint
from allyouneed.decode.sentences import first_prefixes, join_answers
from allyouneed.decode.translate import Answer
from allyouneed.documents.pieces import Document
from allyouneed.documents.placement import Matrix
from allyouneed.documents.translation import Pair, Pairs, Response, Result, Texts, translate_document
from allyouneed.errors import DataError
from allyouneed.serve.backend import INLINE_CHARACTERS, Backend
from allyouneed.serve.engine import Engine
from allyouneed.serve.errors import Refusal
from allyouneed.serve.models import Served
from allyouneed.serve.request_record import current_record
from allyouneed.serve.worker import BatchOperation
from allyouneed.text.glossary import Constraint, Glossary, constraints_of
from allyouneed.text.sentences import Split


@dataclass(frozen=True)
class TextRules:
    """How texts are translated: the number of translations, the terms that they use, and what they begin with."""

    n_best: int = 1
    glossary: Glossary | None = None
    prefix: str = ""


PLAIN = TextRules()


def require_capacity(backend: Backend, models: Sequence[Served], counts: Sequence[int]) -> None:
    """Refuse a request whose texts do not fit into the queues of their models."""
    for served in _each(models):
        count = sum(number for model, number in zip(models, counts, strict=True) if model is served)
        if count:
            backend.engine_of(served).require_capacity(count, "q")


async def search_all(
    backend: Backend,
    models: Sequence[Served],
    units: Sequence[Sequence[str]],
    rules: TextRules = PLAIN,
    accepted: bool = False,
) -> list[list[list[str]]]:
    """Return the best translations of the units of each document. `accepted`: wait for room instead of refusing."""
    found: list[list[list[str]]] = [[] for _ in units]
    for served in _each(models):
        numbers = [number for number, model in enumerate(models) if model is served]
        texts = [unit for number in numbers for unit in units[number]]
        begins = [rules.prefix if place == 0 else "" for number in numbers for place in range(len(units[number]))]
        best = iter(await _search(backend, served, texts, begins, rules, accepted))
        for number in numbers:
            found[number] = [next(best) for _ in units[number]]
    return found


async def translate_pages(
    backend: Backend, models: Sequence[Served], documents: Sequence[Document], rules: TextRules
) -> list[Result]:
    """Return the translations of documents: tags are placed by alignment."""
    steps = [translate_document(one, served.splitter) for one, served in zip(documents, models, strict=True)]
    requests = await backend.in_thread(lambda: [next(one) for one in steps])
    results: dict[int, Result] = {}
    accepted = False
    while not results:
        responses: Sequence[Response]
        if all(isinstance(request, Texts) for request in requests):
            texts = [request.texts for request in requests if isinstance(request, Texts)]
            found = await search_all(backend, models, texts, rules, accepted)
            responses = [[ranked[0] for ranked in one] for one in found]
        else:
            pairs = [request.pairs for request in requests if isinstance(request, Pairs)]
            responses = [await _align(backend, served, one) for served, one in zip(models, pairs, strict=True)]
        sent = list(zip(steps, responses, strict=True))

        def send_all() -> None:
            for number, (one, response) in enumerate(sent):  # noqa: B023
                try:
                    requests[number] = one.send(response)
                except StopIteration as end:
                    results[number] = end.value

        await backend.in_thread(send_all)
        accepted = True
    return [results[number] for number in range(len(steps))]


async def _align(backend: Backend, served: Served, pairs: Sequence[Pair]) -> Sequence[Matrix | None]:
    """Return the alignments of pairs: None for each if the model has none."""
    bundle = served.bundle

    def run(items: Sequence[Any]) -> list[Matrix | None]:
        if not served.aligns:
            return [None] * len(items)
        return [None if found is None else found.tolist() for found in align(bundle.model, bundle.codec, items)]

    items = [(pair.source, pair.source_words, pair.target, pair.target_words) for pair in pairs]
    return await _in_turns(backend.engine_of(served), BatchOperation(("align",), run), items, True)


async def _search(
    backend: Backend, served: Served, texts: Sequence[str], begins: Sequence[str], rules: TextRules, accepted: bool
) -> list[list[str]]:
    """Return the best translations of each text, with the search settings of the model's recipe."""
    if not texts:
        return []
    inline = sum(map(len, texts)) <= INLINE_CHARACTERS
    splits = _split(served, texts) if inline else await backend.in_thread(_split, served, texts)
    pieces = [piece for split in splits for piece in split.pieces]
    await backend.encode_sources(served, pieces, "q")
    if rules.prefix:
        await backend.encode_targets(served, [rules.prefix], "prefix")
    n_best = rules.n_best
    search = served.search.model_copy(update={"n_best": n_best, "beam": max(served.search.beam, n_best)})
    operation, items = backend.search(served, search), list[Any](pieces)
    glossary = _glossary(served, rules)
    constraints = await backend.in_thread(constraints_of, glossary, pieces, first_prefixes(splits, begins))
    if constraints is not None and (rules != PLAIN or any(one.phrases for one in constraints)):
        rows = await backend.in_thread(largest_search, served, search, constraints)
        operation = backend.constrained_search(served, search, rows)
        items = list(zip(pieces, constraints, strict=True))
    found: list[list[Answer]] = await _in_turns(backend.engine_of(served), operation, items, accepted)
    current_record().completion_tokens += sum(answer.tokens for answers in found for answer in answers)
    return [[answer.text for answer in answers] for answers in join_answers(splits, found, n_best)]


def _glossary(served: Served, rules: TextRules) -> Glossary | None:
    """Return the terms of the request, and those of the model."""
    own = None if served.terms is None else served.terms.glossary
    return own if rules.glossary is None else rules.glossary.over(own)


def largest_search(served: Served, search: SearchConfig, constraints: Sequence[Constraint]) -> int:
    """Return the rows of the largest search. Refuse constraints that the model does not support."""
    target = served.bundle.codec.target
    assert target is not None
    if served.ctranslate2 is not None:
        raise Refusal(400, "glossary, prefix: not supported by the engine ctranslate2 of this server", param="glossary")
    for constraint in constraints:
        for text in (constraint.prefix, *(text for phrase in constraint.phrases for text in phrase.alternatives)):
            if not can_write(target, text):
                what = "glossary" if text != constraint.prefix else "prefix"
                raise Refusal(400, f"{what}: {text[:60]!r} cannot be written by the model", param=what)
    try:
        return max(rows_for(encode_constraint(target, constraint), search) for constraint in constraints)
    except DataError as error:
        raise Refusal(400, f"glossary: {error}", param="glossary") from None


async def _in_turns(engine: Engine, operation: BatchOperation, items: Sequence[Any], accepted: bool) -> list[Any]:
    """Return the results of an operation. Many items are processed in turns that leave room for other requests.

    A request is accepted with its first turn: all others wait for room.
    """
    most, _ = engine.most_of_client
    size = most if len(items) <= most else (most + 1) // 2
    found: list[Any] = []
    for start in range(0, len(items), size):
        if start or accepted:
            await engine.wait_for_capacity(len(items[start : start + size]), engine.deadline())
        found += await engine.run(operation, items[start : start + size])
    return found


def _split(served: Served, texts: Sequence[str]) -> list[Split]:
    return [served.splitter.split(text) for text in texts]


def _each(models: Sequence[Served]) -> list[Served]:
    """Return each model once."""
    return list({served.name: served for served in models}.values())
