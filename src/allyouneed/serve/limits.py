"""The limits middleware: bounds on size and time, refusals during shutdown, metrics and security headers.

Plain ASGI. Nothing is buffered, so streams stay streams and disconnects are noticed at once.
"""

import asyncio
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allyouneed.serve.backend import Backend
from allyouneed.serve.clients import address_of, key_client
from allyouneed.serve.errors import Refusal, refusal_response
from allyouneed.serve.worker import closing

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
ALWAYS_OPEN = ("/health", "/metrics")  # available during shutdown, too


class LimitsMiddleware:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, backend: Backend) -> None:
        self.app, self.backend = app, backend

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500
        scope.setdefault("state", {})["client"] = self._client(scope)

        async def respond(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        self.backend.active += 1
        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal_response(Request(scope), refusal)(scope, receive, respond)
            else:
                await self.app(scope, self._limited(receive), respond)
        finally:
            self.backend.active -= 1
            route = scope.get("route")
            endpoint = getattr(route, "path", "other")
            self.backend.metrics.requests.labels(endpoint, str(status)).inc()
            self.backend.metrics.latency.labels(endpoint).observe(time.perf_counter() - start)

    def _client(self, scope: Scope) -> str:
        kind, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        valid = kind.lower() == "bearer" and self.backend.is_valid_key(key)
        return key_client(key) if valid else address_of(scope)

    def _refusal(self, scope: Scope) -> Refusal | None:
        if self.backend.draining and scope["path"] not in ALWAYS_OPEN:
            return closing()
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isascii() or not length.isdigit() or len(length) > 18 or int(length) > self._max_body:
            return self._too_large()
        return None

    @property
    def _max_body(self) -> int:
        return self.backend.config.max_body

    def _too_large(self) -> Refusal:
        return Refusal(413, f"the body is larger than {self._max_body:,} bytes", code="body_too_large")

    def _limited(self, receive: Receive) -> Receive:
        """Return a `receive` that bounds the size and the arrival time of the body, chunked or not."""
        read, more = 0, True
        until = asyncio.get_running_loop().time() + self.backend.config.arrival

        async def limited() -> Message:
            nonlocal read, more
            if not more:
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the body did not arrive in time") from None
            more = message["type"] == "http.request" and message.get("more_body", False)
            read += len(message.get("body", b""))
            if read > self._max_body:
                raise HTTPException(413, self._too_large().message)
            return message

        return limited
