"""OpenAI's endpoint /v1/embeddings: vectors of texts (`decode/embed.py`).

A text that is longer than the model can read, or than `max_input_tokens`, is refused. With `truncate`, a field that is
not OpenAI's, its first tokens are read, and its vector states how many were left out.
"""

import base64
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, StrictBool, StrictStr
from torch import Tensor

from allyouneed.config import Config
from allyouneed.decode.embed import embed, longest_text, readable_ids
from allyouneed.serve.backend import Backend, cancel_on_disconnect
from allyouneed.serve.completion_schema import UNSUPPORTED, Prompts
from allyouneed.serve.errors import Refusal, error_responses
from allyouneed.serve.models import Served
from allyouneed.serve.request_record import current_record
from allyouneed.serve.worker import BatchOperation


class EmbeddingRequest(Config):
    """OpenAI's request, plus `truncate`."""

    model: StrictStr
    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[None, UNSUPPORTED] = None
    user: StrictStr | None = None  # accepted and ignored
    truncate: StrictBool = False


class TextEmbedding(BaseModel):
    """The vector of a text: numbers, or their bytes as little-endian float32 in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    truncated: int | None = None  # tokens that were left out


class EmbeddingUsage(BaseModel):
    """Numbers of tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(BaseModel):
    """The vectors of all texts, in order."""

    object: Literal["list"] = "list"
    data: list[TextEmbedding]
    model: str
    usage: EmbeddingUsage


def router(backend: Backend) -> APIRouter:
    """Return `/v1/embeddings`."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.post(
        "/embeddings",
        response_model_exclude_none=True,
        responses=error_responses(400, 401, 404, 408, 413, 429, 500, 503),
    )
    async def embeddings(request: Request, body: EmbeddingRequest) -> EmbeddingResponse:
        """Return a vector of length 1 for each text."""
        served = backend.served(body.model)
        texts = [body.input] if isinstance(body.input, str) else body.input
        if not texts or not all(texts):
            raise Refusal(400, "input: an empty text or list", param="input")
        backend.check_texts(texts, "input")
        engine, bundle = backend.engine_of(served), served.bundle
        engine.require_capacity(len(texts), "input")
        ids, left_out = await _encode(backend, served, texts, body.truncate)
        operation = BatchOperation("embed", lambda items: embed(bundle.model, bundle.codec, items))
        vectors = await cancel_on_disconnect(request, engine.run(operation, ids))
        read = sum(map(len, ids))
        return EmbeddingResponse(
            data=await backend.in_thread(_data, vectors, left_out, body.encoding_format == "base64"),
            model=served.name,
            usage=EmbeddingUsage(prompt_tokens=read, total_tokens=read),
        )

    return router


async def _encode(
    backend: Backend, served: Served, texts: Sequence[str], truncate: bool
) -> tuple[list[list[int]], list[int]]:
    """Return the ids of texts, and how many of each were left out. Refuse long texts unless they may be truncated."""
    codec, longest = served.bundle.codec, longest_text(served.bundle.model, served.bundle.codec)
    most = min(backend.config.max_input_tokens, longest or backend.config.max_input_tokens)
    ids, left_out = await backend.in_thread(readable_ids, codec, texts, most)
    if any(left_out) and not truncate:
        message = f"input: a text of more than {most:,} tokens; split it, or send truncate to read its first tokens"
        raise Refusal(400, message, param="input", code="context_length_exceeded")
    current_record().prompt_tokens += sum(map(len, ids))
    return ids, left_out


def _data(vectors: Sequence[Tensor], left_out: Sequence[int], as_bytes: bool) -> list[TextEmbedding]:
    return [
        TextEmbedding(
            index=index,
            embedding=_base64(vector_D) if as_bytes else vector_D.tolist(),
            truncated=truncated or None,
        )
        for index, (vector_D, truncated) in enumerate(zip(vectors, left_out, strict=True))
    ]


def _base64(vector_D: Tensor) -> str:
    return base64.b64encode(vector_D.cpu().numpy().astype("<f4").tobytes()).decode()
