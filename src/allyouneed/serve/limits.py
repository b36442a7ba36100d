"""What every request passes on its way in and out: limits of size and time, keys to the house, numbers, headers.

Plain ASGI: nothing is buffered, so streams stay streams and a hang-up is heard at once.
"""

import asyncio
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allyouneed.serve.backend import Backend
from allyouneed.serve.errors import Refusal, answer_refusal
from allyouneed.serve.worker import closing

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
ALWAYS_OPEN = ("/health", "/metrics")  # answered while the server shuts down, too


class LimitsMiddleware:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, backend: Backend) -> None:
        self.app, self.backend = app, backend

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        self.backend.active += 1
        try:
            refusal = self._refuses(scope)
            if refusal is not None:
                await answer_refusal(Request(scope), refusal)(scope, receive, answer)
            else:
                await self.app(scope, self._limited(receive), answer)
        finally:
            self.backend.active -= 1
            route = scope.get("route")
            endpoint = getattr(route, "path", "other")
            self.backend.metrics.requests.labels(endpoint, str(status)).inc()
            self.backend.metrics.latency.labels(endpoint).observe(time.perf_counter() - begun)

    def _refuses(self, scope: Scope) -> Refusal | None:
        if self.backend.draining and scope["path"] not in ALWAYS_OPEN:
            return closing()
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isascii() or not length.isdigit() or len(length) > 18 or int(length) > self._most:
            return self._too_large()
        return None

    @property
    def _most(self) -> int:
        return self.backend.config.max_body

    def _too_large(self) -> Refusal:
        return Refusal(413, f"a body of more than {self._most:,} bytes", code="body_too_large")

    def _limited(self, receive: Receive) -> Receive:
        """The same body, but no more of it than is allowed, and no later than it has to come; chunked ones too."""
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
                raise HTTPException(408, "the body did not come in time") from None
            more = message["type"] == "http.request" and message.get("more_body", False)
            read += len(message.get("body", b""))
            if read > self._most:
                raise HTTPException(413, self._too_large().message)
            return message

        return limited
