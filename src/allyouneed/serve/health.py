"""`/health` and `/metrics`."""

from typing import Literal

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from allyouneed.serve.backend import Backend


class Health(BaseModel):
    """Whether new requests are accepted."""

    status: Literal["ok", "draining"]
    models: list[str]


def health_router(backend: Backend) -> APIRouter:
    """Return `/health`, for load balancers. It needs no key."""
    router = APIRouter(tags=["server"])

    @router.get("/health", responses={503: {"description": "The server is shutting down", "model": Health}})
    async def health(response: Response) -> Health:
        """Report whether the server accepts requests."""
        if backend.draining:
            response.status_code = 503
        return Health(status="draining" if backend.draining else "ok", models=list(backend.models))

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
        """Requests, queues, batch sizes, tokens and latencies."""
        return Response(generate_latest(backend.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router
