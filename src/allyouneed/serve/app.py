"""The ASGI application: all endpoints, with common limits, API keys and error formats."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from allyouneed.serve import chat, completions, embeddings, health, inspect, program, runs, score, tokens, translate
from allyouneed.serve.backend import Backend
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.errors import (
    LIBRETRANSLATE,
    REASONS,
    ErrorResponse,
    PlainErrorResponse,
    Refusal,
    http_error_response,
    refusal_response,
    validation_error_response,
)
from allyouneed.serve.gate import GateMiddleware
from allyouneed.serve.models import Served
from allyouneed.serve.responses import ResponseMiddleware
from allyouneed.serve.thread_pool import json_response
from allyouneed.version import __version__


def create_app(config: ServeConfig, models: dict[str, Served]) -> FastAPI:
    """Return the application that serves some models. Its `state.backend` holds their engines."""
    backend = Backend(config, models)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        backend.start()
        try:
            yield
        finally:
            await asyncio.to_thread(backend.close)

    # The framework's documentation pages are off: they load scripts from other hosts. /openapi.json is available.
    app = FastAPI(
        title="allyouneed",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        servers=[{"url": config.root_path}] if config.root_path else None,
    )
    app.state.backend = backend
    # Only described here; the gate checks keys before anything of a request is parsed.
    keyed = [Security(HTTPBearer(auto_error=False))] if config.keys else []
    app.include_router(health.health_router(backend))
    app.include_router(health.metrics_router(backend), dependencies=keyed)
    app.include_router(translate.router(backend))
    app.include_router(completions.router(backend), dependencies=keyed)
    app.include_router(chat.router(backend), dependencies=keyed)
    app.include_router(embeddings.router(backend), dependencies=keyed)
    app.include_router(score.router(backend), dependencies=keyed)
    app.include_router(tokens.router(backend), dependencies=keyed)
    app.include_router(inspect.page_router())
    app.include_router(inspect.router(backend), dependencies=keyed)
    app.include_router(program.router(backend), dependencies=keyed)
    app.include_router(runs.router(backend), dependencies=keyed)
    app.add_exception_handler(Refusal, refusal_response)
    app.add_exception_handler(HTTPException, http_error_response)
    app.add_exception_handler(RequestValidationError, validation_error_response)
    app.add_middleware(GateMiddleware, backend=backend)
    if config.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=["Retry-After", "X-Request-Id"],
        )
    app.add_middleware(ResponseMiddleware, backend=backend)
    _describe_errors(app)
    _add_description(app, backend)
    return app


def _add_description(app: FastAPI, backend: Backend) -> None:
    """Add `/openapi.json`. The framework would generate it in the event loop, which takes 0.1 s."""

    @app.get("/openapi.json", include_in_schema=False)
    async def description() -> Response:
        return json_response(await backend.in_thread(app.openapi))


def _describe_errors(app: FastAPI) -> None:
    """Add to the OpenAPI description what the gate may answer to any request, and remove 422: here it is a 400."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        tree = generate()
        for path, operations in tree["paths"].items():
            kind = PlainErrorResponse if path in LIBRETRANSLATE else ErrorResponse
            content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
            for operation in operations.values():
                operation["responses"].pop("422", None)
                for status in (400, 429):
                    described = {"description": REASONS[status], "content": content}
                    operation["responses"].setdefault(str(status), described)
        for name in ("HTTPValidationError", "ValidationError"):
            tree["components"]["schemas"].pop(name, None)
        return tree

    app.openapi = openapi  # type: ignore[method-assign]
