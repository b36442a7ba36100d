"""The gate before all endpoints: it refuses a request as early as possible, and hands on only complete ones.

    host | shutdown | declared size | key | requests of this client | body: size, time, structure | endpoint

Keys come before bodies: without a valid key nothing of a request is parsed. LibreTranslate's clients send the key as a
field of the body; for them only the field is looked up. Plain ASGI; responses are not buffered.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allyouneed.serve.backend import Backend
from allyouneed.serve.bodies import (
    FORMS,
    Reserve,
    check_structure,
    content_type,
    parse_form,
    parse_json,
    parse_pairs,
    read_body,
    too_large,
)
from allyouneed.serve.clients import CURRENT_CLIENT, address_of
from allyouneed.serve.errors import Refusal, internal_error_response, path_of, refusal_response
from allyouneed.serve.hosts import check_host
from allyouneed.serve.keys import Keys
from allyouneed.serve.worker import closing

ALWAYS_OPEN = ("/health", "/ready", "/version", "/metrics")  # also during shutdown, and to a client at its limit
NO_KEY = ("/", "/health", "/ready", "/version", "/languages", "/frontend/settings", "/openapi.json")
PAGE = "/page/"  # the files of the page need no key, either
KEY_IN_BODY = ("/translate", "/detect")
SMALL_BODY = 4096  # bytes that are parsed in a millisecond, whatever they are
BODIES = 32  # bodies of the largest size that a client may send in parallel


@dataclass
class InProgress:
    """The requests of one client that are being processed, and the bytes of their bodies."""

    requests: int = 0
    bytes: int = 0


class GateMiddleware:
    """The layer between the framework's endpoints and everything that a client may send."""

    def __init__(self, app: ASGIApp, backend: Backend) -> None:
        self.app, self.backend = app, backend
        self.keys = Keys(lambda: backend.config.keys)
        self._parsing = asyncio.Lock()
        self._in_progress: dict[str, InProgress] = {}  # by client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def respond(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._pass(scope, receive, respond)
        except Refusal as refusal:
            await refusal_response(Request(scope), refusal)(scope, receive, respond)
        except Exception as error:
            # The framework's own handler is outside of all middlewares: its response would lack their headers.
            if not started:
                await internal_error_response(Request(scope), error)(scope, receive, respond)
            raise

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the endpoint, or raise the refusal of a request."""
        path, headers, address = path_of(scope), Headers(scope=scope), address_of(scope)
        has_body = self._check_head(scope, headers)
        needs_key = self.keys.required and path not in NO_KEY and not path.startswith(PAGE)
        given = _bearer_keys(headers) if needs_key else []
        in_body = needs_key and path in KEY_IN_BODY and self.keys.find(given) is None
        client = self.keys.check(address, given) if needs_key and not in_body else address
        with ExitStack() as slots:
            content = b""
            if has_body:
                config, reserve = self.backend.config, slots.enter_context(self._slot(client))
                content = await read_body(receive, config.max_body, config.arrival, reserve)
                if len(content) > SMALL_BODY:
                    await self._wait_for_turn()
                receive = _replayed(content, receive)
            elif path not in ALWAYS_OPEN:
                slots.enter_context(self._slot(client))
            if in_body:
                client = self.keys.check(address, [*given, *await _keys_in(scope, headers, content)])
                slots.close()
                slots.enter_context(self._slot(client))(len(content))
            if content_type(headers) not in FORMS:
                check_structure(content)
            scope["state"]["client"] = client
            CURRENT_CLIENT.set(client)
            await self.app(scope, receive, send)

    async def _wait_for_turn(self) -> None:
        """Return in a cycle of the event loop in which no other large body is parsed.

        The request that holds the lock waits for the next cycle, releases it, and is parsed before that cycle ends.
        """
        async with self._parsing:
            await asyncio.sleep(0)

    def _check_head(self, scope: Scope, headers: Headers) -> bool:
        """Refuse a request by its headers, or return whether it has a body."""
        check_host(scope, self.backend.config)
        if self.backend.draining and path_of(scope) not in ALWAYS_OPEN:
            raise closing()
        length, most = headers.get("content-length", "0"), self.backend.config.max_body
        if not length.isascii() or not length.isdigit() or len(length) > 18 or int(length) > most:
            raise too_large(most)
        return int(length) > 0 or "transfer-encoding" in headers

    @contextmanager
    def _slot(self, client: str) -> Iterator[Reserve]:
        """Count a request in progress, or refuse it with 429. Yield the function that reserves memory for its body."""
        config, mine, reserved = self.backend.config, self._in_progress.setdefault(client, InProgress()), 0

        def reserve(size: int) -> None:
            nonlocal reserved
            if mine.bytes + size > BODIES * config.max_body:
                message = f"{mine.bytes:,} bytes of this client are being processed; try again when a request has ended"
                raise Refusal(429, message, code="too_many_requests", retry=1)
            mine.bytes += size
            reserved += size

        if mine.requests >= config.client_requests:
            message = f"{mine.requests} requests of this client are in progress; try again when one has ended"
            raise Refusal(429, message, code="too_many_requests", retry=1)
        mine.requests += 1
        try:
            yield reserve
        finally:
            mine.requests -= 1
            mine.bytes -= reserved
            if not mine.requests:
                del self._in_progress[client]


def _bearer_keys(headers: Headers) -> list[str]:
    kind, _, key = headers.get("authorization", "").partition(" ")
    return [key] if kind.lower() == "bearer" and key else []


async def _keys_in(scope: Scope, headers: Headers, content: bytes) -> list[str]:
    """Return the values of the field `api_key` in the query and in the body. Whatever cannot be read has none.

    A repeated field is refused: a request could guess many keys.
    """
    in_query: list[Any] = []
    in_body: Any = None
    with suppress(Refusal, UnicodeDecodeError):
        in_query = [value for name, value in parse_pairs(scope["query_string"]) if name == "api_key"]
    with suppress(Refusal):
        if content_type(headers) in FORMS:
            tree = await parse_form(content, headers)
        else:
            check_structure(content)
            tree = parse_json(content)
        in_body = tree.get("api_key") if isinstance(tree, dict) else None
    if len(in_query) > 1 or isinstance(in_body, list):
        raise Refusal(400, "api_key is given more than once; send one key", param="api_key")
    return [key for key in [*in_query, in_body] if isinstance(key, str) and key]


def _replayed(content: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns this body first."""
    read = False

    async def replayed() -> Message:
        nonlocal read
        if read:
            return await receive()
        read = True
        return {"type": "http.request", "body": content, "more_body": False}

    return replayed
