"""The application: every endpoint behind the same limits, keys and kinds of error."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from allyouneed.serve import completions, health, inspect, program, runs, score, translate
from allyouneed.serve.backend import Backend
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.errors import Refusal, answer_bug, answer_http, answer_invalid, answer_refusal
from allyouneed.serve.limits import LimitsMiddleware
from allyouneed.serve.models import Served
from allyouneed.version import __version__


def create_app(config: ServeConfig, models: dict[str, Served]) -> FastAPI:
    """The API in front of some models; its `state.backend` has the engines."""
    backend = Backend(config, models)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        backend.start()
        try:
            yield
        finally:
            await asyncio.to_thread(backend.close)

    # No pages of documentation by the framework: they load scripts from elsewhere. /openapi.json is there.
    app = FastAPI(title="allyouneed", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.backend = backend
    keyed = [_needs_key(backend)] if config.keys else []
    app.include_router(health.health_router(backend))
    app.include_router(health.metrics_router(backend), dependencies=keyed)
    app.include_router(translate.router(backend))
    app.include_router(completions.router(backend), dependencies=keyed)
    app.include_router(score.router(backend), dependencies=keyed)
    app.include_router(inspect.page_router())
    app.include_router(inspect.router(models, config), dependencies=keyed)
    app.include_router(program.router(models, config), dependencies=keyed)
    app.include_router(runs.router(models, config), dependencies=keyed)
    app.add_exception_handler(Refusal, answer_refusal)
    app.add_exception_handler(HTTPException, answer_http)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(Exception, answer_bug)
    if config.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    app.add_middleware(LimitsMiddleware, backend=backend)
    _describe(app)
    return app


def _needs_key(backend: Backend) -> Any:
    bearer = HTTPBearer(auto_error=False)

    def check(credentials: HTTPAuthorizationCredentials | None = Security(bearer)) -> None:  # noqa: B008
        backend.check_key(credentials.credentials if credentials else None)

    return Depends(check)


def _describe(app: FastAPI) -> None:
    """The framework describes what it would answer to an invalid request (422); here that is a 400 like any other."""
    made = app.openapi

    def describe() -> dict[str, Any]:
        tree = made()
        for path in tree["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            tree["components"]["schemas"].pop(name, None)
        return tree

    app.openapi = describe  # type: ignore[method-assign]
