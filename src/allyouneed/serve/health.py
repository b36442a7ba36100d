"""`/health`, `/ready`, `/version` and `/metrics`."""

import asyncio
from typing import Literal

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from allyouneed.serve.backend import Backend
from allyouneed.serve.metrics import VERSIONS


class Version(BaseModel):
    """The versions of the server and of what computes."""

    version: str
    python: str
    torch: str


class Readiness(BaseModel):
    """Whether requests should be sent to this server."""

    status: Literal["ready", "starting", "draining"]
    models: list[str]


class Health(BaseModel):
    """Whether new requests are accepted."""

    status: Literal["ok", "draining"]
    models: list[str]


def health_router(backend: Backend) -> APIRouter:
    """Return `/health`, `/ready` and `/version`, for load balancers and operators. They need no key."""
    router = APIRouter(tags=["server"])

    @router.get("/health", responses={503: {"description": "The server is shutting down", "model": Health}})
    async def health(response: Response) -> Health:
        """Report whether the server accepts requests."""
        if backend.draining:
            response.status_code = 503
        return Health(status="draining" if backend.draining else "ok", models=list(backend.models))

    @router.get("/ready", responses={503: {"description": "Send requests elsewhere", "model": Readiness}})
    async def ready(response: Response) -> Readiness:
        """Report whether requests should be sent here: all models are loaded, and the server is not shutting down."""
        status: Literal["ready", "starting", "draining"] = "ready" if backend.started else "starting"
        status = "draining" if backend.draining else status
        if status != "ready":
            response.status_code = 503
        return Readiness(status=status, models=list(backend.models))

    @router.get("/version")
    async def version() -> Version:
        """Return the versions of the server, of Python and of torch."""
        return Version(**VERSIONS)

    return router


def metrics_router(backend: Backend) -> APIRouter:
    """Return `/metrics`, for Prometheus."""
    router = APIRouter(tags=["server"])

    @router.get(
        "/metrics",
        response_class=Response,
        responses={200: {"description": "Prometheus' text format", "content": {"text/plain": {}}}},
    )
    async def metrics() -> Response:
        """Requests, queues, batch sizes, tokens, latencies, connections, and the process."""
        if backend.shared_metrics is None:
            text = generate_latest(backend.metrics.registry)
        else:
            text = await asyncio.to_thread(backend.shared_metrics.read)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return router
