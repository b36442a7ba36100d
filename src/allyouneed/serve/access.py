"""The access middleware: a request id in every response, one line of the access log for each request, and metrics.

It is the outermost layer of the application, so that it sees refusals of all other layers, too.
"""

import logging
import time
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allyouneed.serve.backend import Backend
from allyouneed.serve.clients import client_of
from allyouneed.serve.request_record import REQUEST_ID, RequestRecord, new_id, set_record

log = logging.getLogger("allyouneed.access")
REQUEST_ID_HEADER = "X-Request-Id"
DISCONNECTED = 499  # nginx's status of a client that left before its response
LONGEST_PATH = 500  # characters in the log


class AccessMiddleware:
    """Names every request, and records it when its response is complete."""

    def __init__(self, app: ASGIApp, backend: Backend) -> None:
        self.app, self.backend = app, backend

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        record = RequestRecord(id=given if REQUEST_ID.fullmatch(given) else new_id())
        set_record(record)
        scope.setdefault("state", {})["request_id"] = record.id
        status: int | None = None

        async def respond(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = record.id
                if self.backend.draining:
                    headers["Connection"] = "close"  # the client, or a proxy, then connects elsewhere
                if headers.get("content-type", "").startswith("text/event-stream"):
                    headers["X-Accel-Buffering"] = "no"  # nginx then passes events on as they arrive
            await send(message)

        self.backend.requests.add(record)
        try:
            await self.app(scope, receive, respond)
        except Exception:
            status = status or 500  # the framework sends it, outside of all middleware
            raise
        finally:
            self.backend.requests.discard(record)
            self.backend.metrics.observe(record)
            if log.isEnabledFor(logging.INFO):
                entry = access_entry(scope, record, status or DISCONNECTED)
                log.info("%s", text_line(entry), extra={"entry": entry})


def access_entry(scope: Scope, record: RequestRecord, status: int) -> dict[str, Any]:
    """Return the fields of a request in the access log. A field is None if it does not apply."""
    used = record.model is not None
    return {
        "request_id": record.id,
        "client": client_of(scope),
        "method": scope["method"],
        "path": quote(scope["path"][:LONGEST_PATH], safe="/:@!$&'()*+,;=~"),
        "model": record.model,
        "status": status,
        "prompt_tokens": record.prompt_tokens if used else None,
        "completion_tokens": record.completion_tokens if used else None,
        "queue_seconds": _rounded(record.queue_seconds),
        "first_token_seconds": _rounded(record.first_token_seconds),
        "total_seconds": _rounded(time.perf_counter() - record.start),
    }


def text_line(entry: dict[str, Any]) -> str:
    """Return the fields of a request as one line of text; `-` stands for a field that does not apply."""
    shown = {name: "-" if value is None else value for name, value in entry.items()}
    return (
        "{request_id} {client} {method} {path} {status} model={model} prompt={prompt_tokens} "
        "completion={completion_tokens} queue={queue_seconds} first={first_token_seconds} total={total_seconds}"
    ).format(**shown)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
