"""Bodies that are expensive to process: the error is short, and nothing of them is processed without a key.

`tests/faults/hostile_requests.py` measures how long other requests wait meanwhile.
"""

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import httpx2 as httpx
import hypothesis
import pytest
from hostile_bodies import FIELDS, JSON, all_bodies
from hypothesis import strategies as st
from raw_http import read_status
from serve_folders import running
from starlette.types import Message, Receive, Scope, Send

from allyouneed.serve import ServeConfig
from allyouneed.serve.bodies import MAX_VALUES, check_structure, parse_pairs
from allyouneed.serve.errors import Refusal
from allyouneed.serve.gate import SMALL_BODY, GateMiddleware
from waiting import PATIENCE

pytestmark = pytest.mark.no_shapes
LARGEST_ERROR = 4096  # bytes


@pytest.mark.parametrize("path", FIELDS)
def test_errors_are_short(url: str, path: str) -> None:
    tried = 0
    for where, name, kind, content in all_bodies():
        if where == path:
            tried += 1
            found = httpx.post(url + path, content=content, headers={"Content-Type": kind})
            assert found.status_code in (400, 404) or (path, found.status_code) == ("/detokenize", 200), name
            assert len(found.content) <= LARGEST_ERROR, name
    assert tried > 20


def test_long_names_and_paths_are_cut(url: str) -> None:
    for path in ("/v1/models/", "/runs/", "/page/", "/nothing/"):
        found = httpx.get(url + path + "ü" * 5000)
        assert found.status_code in (400, 404)
        assert len(found.content) <= LARGEST_ERROR


@pytest.mark.parametrize(
    "first", ["1", '"a"', '"\\\\"', '"\\""', "[]", json.dumps('\\",[{' * 10_000)], ids=lambda first: first[:20]
)
def test_values_are_counted(first: str) -> None:
    """Brackets and commas in texts are no values, and an escaped quote does not end a text."""
    for count, allowed in ((MAX_VALUES - 2, True), (MAX_VALUES + 1, False)):
        content = f'{{"a": [{", ".join([first, *["1"] * (count - 2)])}]}}'.encode()
        if allowed:
            check_structure(content)
        else:
            with pytest.raises(Refusal, match="more than 32,768 values"):
                check_structure(content)


@hypothesis.given(
    st.lists(st.sampled_from(["%", "%4", "%41", "%c3%BC", "%25", "+", "&", "=", "\\\\", "\\x41", "ü", "a", "%%"]))
)
def test_forms_are_decoded_as_by_urllib(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert parse_pairs(text.encode()) == parse_qsl(text, keep_blank_values=True, errors="strict")


@pytest.fixture(scope="module")
def keyed(folders: list[Path]) -> Iterator[str]:
    """The address of a server with a key."""
    with running([folders[0], folders[3]], keys=["open-sesame"]) as (url, _):
        yield url


@pytest.mark.parametrize("path", FIELDS)
def test_without_a_key_nothing_is_parsed(keyed: str, path: str) -> None:
    for content in (b"", b"{", b"[1]", b'{"colour": "red"}', b'{"api_key": 5}', b'{"api_key": ""}', b"[" * 100_000):
        found = httpx.post(keyed + path, content=content, headers={"Content-Type": JSON})
        error = found.json()["error"]
        if path in ("/translate", "/detect"):
            assert (found.status_code, error) == (400, "Please contact the server operator to get an API key")
        else:
            assert (found.status_code, error["code"]) == (401, "missing_api_key")


@pytest.mark.parametrize("path", [path for path in FIELDS if path not in ("/translate", "/detect")])
def test_without_a_key_no_body_is_read(keyed: str, path: str) -> None:
    host, port = keyed.removeprefix("http://").split(":")
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(head.encode())
        assert read_status(connection) == 401


@pytest.mark.parametrize(("size", "turns"), [(SMALL_BODY + 1, True), (SMALL_BODY, False)])
def test_large_bodies_are_parsed_in_different_cycles_of_the_event_loop(size: int, turns: bool) -> None:
    """Even if many arrive at once. Other requests are served in between."""
    parsed: list[int] = []

    async def test() -> None:
        cycle = 0

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            assert len((await receive())["body"]) == size
            parsed.append(cycle)

        async def receive() -> Message:
            return {"type": "http.request", "body": b" " * size, "more_body": False}

        async def send(message: Message) -> None:
            raise AssertionError(message)

        headers = [(b"host", b"localhost"), (b"content-length", str(size).encode())]
        scope = {"type": "http", "method": "POST", "path": "/score", "client": ("127.0.0.1", 1), "headers": headers}
        backend: Any = SimpleNamespace(config=ServeConfig(), draining=False)
        gate = GateMiddleware(app, backend)
        tasks = [asyncio.create_task(gate({**scope, "state": {}}, receive, send)) for _ in range(20)]
        while not all(task.done() for task in tasks):
            cycle += 1
            await asyncio.sleep(0)
        for task in tasks:
            task.result()

    asyncio.run(test())
    assert len(parsed) == 20
    assert len(set(parsed)) == (20 if turns else 1)
