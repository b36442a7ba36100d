"""Bodies of requests: they are read whole, within bounds of size, time and structure.

Nothing that a client sends may occupy the event loop for long. The time to validate a body grows with the number of its
values, not with its bytes, so `check_structure` bounds their number before anything parses them.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import Receive

from allyouneed.serve.errors import Refusal

MULTIPART = "multipart/form-data"
FORMS = ("application/x-www-form-urlencoded", MULTIPART)
MAX_FIELDS = 100  # of a form
MAX_VALUES = 1 << 15  # fields and list elements of JSON; a text of `max_characters` may have as many token ids
Reserve = Callable[[int], None]
STRAY_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


async def read_body(receive: Receive, most: int, seconds: float, reserve: Reserve) -> bytes:
    """Return the body of a request. Refuse one that is too large or too slow, or whose client disconnects.

    `reserve` is called with the bytes of each chunk, and may refuse them.
    """
    chunks, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(499, "the client disconnected")  # never read
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if size > most:
                    raise too_large(most)
                reserve(len(chunks[-1]))
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise Refusal(408, "the body did not arrive in time", code="request_timeout") from None


def too_large(most: int) -> Refusal:
    """Return the refusal of a body of more than `most` bytes."""
    return Refusal(413, f"the body is larger than {most:,} bytes", code="body_too_large")


def content_type(headers: Mapping[str, str]) -> str:
    """Return the type of a body in lower case, without parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def check_structure(content: bytes) -> None:
    """Refuse JSON of more than `MAX_VALUES` values. Takes milliseconds for 1 MiB, whatever it contains."""
    if b"\0" in content:  # UTF-16 and UTF-32, which the parser would accept and this function misread
        raise Refusal(400, "the body contains a NUL byte; send JSON in UTF-8")
    if _openings(content) <= MAX_VALUES:
        return
    # Commas in texts are no structure. Each value has at most two strings, its name and itself.
    plain, strings = STRING.subn(b"", content, count=2 * MAX_VALUES + 1)
    if strings > 2 * MAX_VALUES or _openings(plain) > MAX_VALUES:
        raise Refusal(400, f"the body has more than {MAX_VALUES:,} values; send fewer", code="too_many_values")


def _openings(content: bytes) -> int:
    return content.count(b",") + content.count(b"[") + content.count(b"{")


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text that passed `check_structure`, or refuse it with 400."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON") from None


async def parse_form(content: bytes, headers: Headers) -> dict[str, Any]:
    """Return the fields of a form, or refuse it with 400. A repeated field becomes a list."""
    try:
        content.decode()  # the framework would decode invalid UTF-8 as Latin-1
        pairs = await _parse_multipart(content, headers) if content_type(headers) == MULTIPART else parse_pairs(content)
    except UnicodeDecodeError:
        raise Refusal(400, "the form contains bytes that are not UTF-8; encode its texts in UTF-8") from None
    except MultiPartException as error:
        raise Refusal(400, str(error.message)) from None
    tree: dict[str, Any] = {}
    for name, value in pairs:
        tree.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in tree.items()}


def parse_pairs(content: bytes) -> list[tuple[str, str]]:
    """Return the names and values of an urlencoded form or query, like `urllib.parse.parse_qsl`, or refuse it."""
    count = 1 + content.count(b"&")
    if count > MAX_FIELDS:
        raise Refusal(400, f"the form has {count:,} fields; at most {MAX_FIELDS} are allowed")
    pairs = [part.partition(b"=") for part in content.split(b"&") if part]
    return [(_unquote(name), _unquote(value)) for name, _, value in pairs]


def _unquote(value: bytes) -> str:
    """Replace + and %41. `urllib` takes 0.2 s for 1 MiB of escapes, the codec of Python's string literals 5 ms."""
    value = value.replace(b"+", b" ")
    if b"%" in value:
        literal = STRAY_PERCENT.sub(b"%25", value).replace(b"\\", b"\\\\").replace(b"%", b"\\x")
        value = literal.decode("unicode_escape").encode("latin-1")
    return value.decode()


async def _parse_multipart(content: bytes, headers: Headers) -> list[tuple[str, Any]]:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield content

    form = await MultiPartParser(headers, stream(), max_files=0, max_fields=MAX_FIELDS).parse()
    return form.multi_items()
