"""Every response, refusals included: the request's id and record, security headers, HEAD, the access log and metrics.

The outermost layer of the application. Plain ASGI. Nothing is buffered, so streams stay streams and disconnects are
noticed at once.
"""

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allyouneed.serve.access import log_access
from allyouneed.serve.backend import Backend
from allyouneed.serve.clients import address_of
from allyouneed.serve.request_record import REQUEST_ID, RequestRecord, new_id, set_record

REQUEST_ID_HEADER = "X-Request-Id"
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class ResponseMiddleware:
    """Keeps the record of every request, and adds headers to every response."""

    def __init__(self, app: ASGIApp, backend: Backend) -> None:
        self.app, self.backend = app, backend

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        record = RequestRecord(id=given if REQUEST_ID.fullmatch(given) else new_id())
        set_record(record)
        scope.setdefault("state", {})["client"] = address_of(scope)  # the gate may find a key
        head = scope["method"] == "HEAD"

        async def respond(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                self._add_headers(MutableHeaders(scope=message), record)
            elif head:
                message = {**message, "body": b""}
            await send(message)

        # HEAD is GET without the body of the response.
        inner = {**scope, "method": "GET"} if head else scope
        self.backend.requests.add(record)
        try:
            await self.app(inner, receive, respond)
        except Exception:
            record.status = record.status or 500  # the framework sends it, outside of all middleware
            raise
        finally:
            self.backend.requests.discard(record)
            record.complete(getattr(inner.get("route"), "path", "other"))
            self.backend.metrics.observe(record)
            log_access(scope, record)

    def _add_headers(self, headers: MutableHeaders, record: RequestRecord) -> None:
        for name, value in SECURITY_HEADERS.items():
            headers.setdefault(name, value)
        headers[REQUEST_ID_HEADER] = record.id
        if self.backend.draining:
            headers["Connection"] = "close"  # the client, or a proxy, then connects elsewhere
        if headers.get("content-type", "").startswith("text/event-stream"):
            headers["X-Accel-Buffering"] = "no"  # nginx then passes events on as they arrive
