"""How probable is a text, or an answer to a text?"""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, StrictStr

from allyouneed.config import Config
from allyouneed.decode import Scored, score
from allyouneed.evaluation.measure import score_lines
from allyouneed.serve.backend import Backend, unless_gone
from allyouneed.serve.errors import Refusal, described, otherwise
from allyouneed.serve.models import Served
from allyouneed.serve.worker import Work

Texts = Annotated[StrictStr | list[StrictStr], otherwise("should be a text or a list of texts")]


class ScoreRequest(Config):
    """Texts; for a model that answers to texts, with their answers."""

    model: StrictStr
    text: Texts
    target: Texts | None = None


class OneScore(BaseModel):
    """The log-probability of one text, in nats."""

    logprob: float
    tokens: int
    token_logprobs: list[float]


class ScoreAnswer(BaseModel):
    """One score for each text, in order."""

    model: str
    scores: list[OneScore]


def router(backend: Backend) -> APIRouter:
    """`/score`."""
    router = APIRouter(tags=["score"])

    @router.post("/score", responses=described(400, 401, 404, 408, 413, 429, 500, 503))
    async def score_texts(request: Request, body: ScoreRequest) -> ScoreAnswer:
        """The log-probability of texts, or of targets given their texts."""
        served = backend.served(body.model)
        texts = [body.text] if isinstance(body.text, str) else body.text
        targets = [body.target] if isinstance(body.target, str) else body.target
        if (targets is not None) != served.takes_source:
            needs = "needs a target for each text" if served.takes_source else "takes texts alone, no targets"
            raise Refusal(400, f"target: {served.name} {needs}", param="target")
        if targets is not None and len(targets) != len(texts):
            raise Refusal(400, f"target: {len(targets)} targets for {len(texts)} texts", param="target")
        backend.check_texts([*texts, *(targets or ())], "text")
        backend.engines[served.name].require_room(len(texts), "text")
        work, items = await _work(backend, served, texts, targets)
        found = await unless_gone(request, backend.engines[served.name].do(work, items))
        return ScoreAnswer(model=served.name, scores=[_answer(one) for one in found])

    return router


def _answer(scored: Scored) -> OneScore:
    return OneScore(logprob=scored.logprob, tokens=scored.tokens, token_logprobs=scored.token_logprobs)


async def _work(
    backend: Backend, served: Served, texts: Sequence[str], targets: Sequence[str] | None
) -> tuple[Work, Sequence[Any]]:
    bundle = served.bundle
    if targets is None:
        ids = await backend.encode_targets(served, texts, "text")
        # A language model learns no end of text, so a text is scored as the beginning of one.
        return Work("score", lambda pairs: score(bundle.model, pairs, ended=False)), [(None, one) for one in ids]
    sources = await backend.encode_sources(served, texts, "text")
    if bundle.codec.classes is not None:
        lines = [f"{text}\t{target}" for text, target in zip(texts, targets, strict=True)]
        if any(line.count("\t") > 1 or "\n" in line for line in lines):
            raise Refusal(400, "text: a text whose class is scored holds no tabs or line breaks", param="text")
        return Work("score", lambda some: score_lines(bundle, list(some), "text")), lines
    ids = await backend.encode_targets(served, targets, "target")
    return Work("score", lambda pairs: score(bundle.model, pairs)), list(zip(sources, ids, strict=True))
