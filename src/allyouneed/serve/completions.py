"""OpenAI's endpoints: /v1/models and /v1/completions.

A language model continues the prompt. For a model with a source, the prompt is the source, and the completion is the
target.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from allyouneed.serve.backend import Backend, cancel_on_disconnect
from allyouneed.serve.completion_format import CompletionPart
from allyouneed.serve.completion_schema import (
    Completion,
    CompletionRequest,
    ModelCard,
    ModelList,
    UnknownCompletion,
)
from allyouneed.serve.completion_task import CompletionTask
from allyouneed.serve.encoded_prompt import EncodedPrompt, encode_sources
from allyouneed.serve.errors import Refusal, error_responses
from allyouneed.serve.models import Served
from allyouneed.serve.unknown import unknown_words_of


def router(backend: Backend) -> APIRouter:
    """Return `/v1/*`."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.get("/models", responses=error_responses(401, 500, 503))
    async def models() -> ModelList:
        """List all models."""
        return ModelList(data=[_card(served) for served in backend.models.values()])

    @router.get("/models/{model}", responses=error_responses(401, 404, 500, 503))
    async def model(model: str) -> ModelCard:
        """Describe one model."""
        return _card(backend.served(model))

    @router.post(
        "/completions",
        response_model=Completion | UnknownCompletion,
        responses={
            200: {"description": "The completion, or a stream of its parts", "content": {"text/event-stream": {}}},
            **error_responses(400, 401, 404, 408, 413, 429, 500, 503),
        },
    )
    async def completions(request: Request, body: CompletionRequest) -> Response:
        """Continue a text, or generate the target of a source."""
        served = backend.served(body.model)
        return await respond(request, await _prepare(backend, served, body))

    return router


async def respond(request: Request, task: CompletionTask) -> Response:
    """Run a task and return its response, or a stream of its parts."""
    if task.body.stream:
        # Wait for the first part before sending a status: a full queue is a 429, not a stream.
        parts = task.parts()
        first = await cancel_on_disconnect(request, anext(parts))
        return StreamingResponse(_events(task, first, parts), media_type="text/event-stream")
    choices = await cancel_on_disconnect(request, task.whole())
    return Response(await task.dumped(choices), media_type="application/json")


def _card(served: Served) -> ModelCard:
    return ModelCard(id=served.name, created=served.created)


async def _prepare(backend: Backend, served: Served, body: CompletionRequest) -> CompletionTask:
    """Check the request, then tokenize its prompts."""
    config, n = backend.config, body.n or 1
    if not body.prompts:
        raise Refusal(400, "prompt: an empty list", param="prompt")
    for name, value, most in (
        ("n", n, config.max_n),
        ("max_tokens", body.max_tokens or 0, config.max_tokens),
        ("logprobs", body.logprobs or 0, config.max_logprobs),
    ):
        if value > most:
            raise Refusal(400, f"{name}: {value} is more than {most}", param=name)
    backend.check_texts(body.prompts, "prompt")
    if body.echo and body.logprobs is not None and served.takes_source:
        raise Refusal(400, "echo: the prompt is a source, and sources have no log-probabilities", param="echo")
    if not served.generates_text and body.logprobs is not None:
        message = f"logprobs: {served.name} is a classifier; use /score for the probabilities of its classes"
        raise Refusal(400, message, param="logprobs")
    backend.engine_of(served).require_capacity(n * len(body.prompts), "prompt")
    if not served.takes_source:
        ids = await backend.encode_targets(served, body.prompts, "prompt")
        return CompletionTask(backend, served, body, [EncodedPrompt([prompt]) for prompt in ids])
    prompts = await encode_sources(backend, served, body.prompts, "prompt")
    words = await unknown_words_of(backend, [(served, prompt) for prompt in body.prompts])
    unknown = None if not any(words) else words[0] if isinstance(body.prompt, str) else words
    return CompletionTask(backend, served, body, prompts, unknown)


async def _events(
    task: CompletionTask, first: CompletionPart, parts: AsyncGenerator[CompletionPart]
) -> AsyncIterator[str]:
    """Yield server-sent events."""
    usage = bool(task.body.stream_options and task.body.stream_options.include_usage)
    exclude = {"usage"} if not usage else None
    async with aclosing(parts):
        try:
            yield f"data: {task.completion([first]).model_dump_json(exclude=exclude)}\n\n"
            async for part in parts:
                yield f"data: {task.completion([part]).model_dump_json(exclude=exclude)}\n\n"
            if usage:
                yield f"data: {task.completion([], task.usage).model_dump_json()}\n\n"
        except Refusal as refusal:  # the status has been sent; clients raise the error of this event
            yield f"data: {json.dumps(refusal.tree)}\n\n"
        yield "data: [DONE]\n\n"
