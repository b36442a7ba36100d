"""Every response, refusals included: metrics, security headers, and HEAD.

Plain ASGI. Nothing is buffered, so streams stay streams and disconnects are noticed at once.
"""

import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allyouneed.serve.backend import Backend
from allyouneed.serve.clients import address_of

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class ResponseMiddleware:
    """Adds headers to responses and counts them. It is outside of the gate, so that refusals count, too."""

    def __init__(self, app: ASGIApp, backend: Backend) -> None:
        self.app, self.backend = app, backend

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, head = time.perf_counter(), 500, scope["method"] == "HEAD"
        scope.setdefault("state", {})["client"] = address_of(scope)  # the gate may find a key

        async def respond(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            elif head:
                message = {**message, "body": b""}
            await send(message)

        # HEAD is GET without the body of the response.
        inner = {**scope, "method": "GET"} if head else scope
        self.backend.active += 1
        try:
            await self.app(inner, receive, respond)
        finally:
            self.backend.active -= 1
            endpoint = getattr(inner.get("route"), "path", "other")
            self.backend.metrics.requests.labels(endpoint, str(status)).inc()
            self.backend.metrics.latency.labels(endpoint).observe(time.perf_counter() - start)
