"""`/score`: the log-probability of texts, or of targets given their sources."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, StrictStr

from allyouneed.config import Config
from allyouneed.decode import Scored, score
from allyouneed.evaluation.probabilities import score_lines
from allyouneed.serve.backend import Backend, cancel_on_disconnect
from allyouneed.serve.errors import Refusal, error_responses, fail_with
from allyouneed.serve.models import Served
from allyouneed.serve.worker import BatchOperation

Texts = Annotated[StrictStr | list[StrictStr], fail_with("should be a text or a list of texts")]


class ScoreRequest(Config):
    """Texts, and for a model with a source their targets."""

    model: StrictStr
    text: Texts
    target: Texts | None = None


class TextScore(BaseModel):
    """The log-probability of one text, in nats."""

    logprob: float
    tokens: int
    token_logprobs: list[float]


class ScoreResponse(BaseModel):
    """The score of each text, in order."""

    model: str
    scores: list[TextScore]


def router(backend: Backend) -> APIRouter:
    """Return `/score`."""
    router = APIRouter(tags=["score"])

    @router.post("/score", responses=error_responses(400, 401, 404, 408, 413, 429, 500, 503))
    async def score_texts(request: Request, body: ScoreRequest) -> ScoreResponse:
        """Return the log-probability of texts, or of targets given their texts."""
        served = backend.served(body.model)
        texts = [body.text] if isinstance(body.text, str) else body.text
        targets = [body.target] if isinstance(body.target, str) else body.target
        if (targets is not None) != served.takes_source:
            needs = "needs a target for each text" if served.takes_source else "takes texts without targets"
            raise Refusal(400, f"target: {served.name} {needs}", param="target")
        if targets is not None and len(targets) != len(texts):
            raise Refusal(400, f"target: {len(targets)} targets for {len(texts)} texts", param="target")
        backend.check_texts([*texts, *(targets or ())], "text")
        backend.engine_of(served).require_capacity(len(texts), "text")
        operation, items = await _operation(backend, served, texts, targets)
        found = await cancel_on_disconnect(request, backend.engine_of(served).run(operation, items))
        return ScoreResponse(model=served.name, scores=[_score(one) for one in found])

    return router


def _score(scored: Scored) -> TextScore:
    return TextScore(logprob=scored.logprob, tokens=scored.tokens, token_logprobs=scored.token_logprobs)


async def _operation(
    backend: Backend, served: Served, texts: Sequence[str], targets: Sequence[str] | None
) -> tuple[BatchOperation, Sequence[Any]]:
    bundle = served.bundle
    if targets is None:
        ids = await backend.encode_targets(served, texts, "text")
        # A language model does not learn an end of text, so a text is scored as a prefix.
        operation = BatchOperation("score", lambda pairs: score(bundle.model, pairs, ended=False))
        return operation, [(None, one) for one in ids]
    sources = await backend.encode_sources(served, texts, "text")
    if bundle.codec.classes is not None:
        lines = [f"{text}\t{target}" for text, target in zip(texts, targets, strict=True)]
        if any(line.count("\t") > 1 or "\n" in line for line in lines):
            raise Refusal(400, "text: contains a tab or a line break; remove it", param="text")
        return BatchOperation("score", lambda some: score_lines(bundle, list(some), "text")), lines
    ids = await backend.encode_targets(served, targets, "target")
    operation = BatchOperation("score", lambda pairs: score(bundle.model, pairs, prefix=bundle.codec.prefix))
    return operation, list(zip(sources, ids, strict=True))
