"""`/rasp`: programs that people type, run on their input and compiled, as they type.

A program is untrusted. The language has limits of its own (`rasp/limits.py`) and loads no files here; on top of them it
runs in a process without anything else in it, which is ended when it takes too long.
"""

import json
import os
import queue
import re
import select
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

from allyouneed.config import Config
from allyouneed.errors import DataError
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.errors import described
from allyouneed.serve.models import Served
from allyouneed.serve.thread_pool import ThreadPool, as_answer
from allyouneed.training.recipe import recipe_folder

SECONDS = 8.0  # for one program
STARTING = 60.0  # for a process to begin: it imports torch
LARGEST = 64 << 20  # bytes of an answer
COMMAND = [sys.executable, "-c", "from allyouneed.rasp.compiler.explain import main; main()"]


class RaspRequest(Config):
    """A program and an input."""

    program: Annotated[StrictStr, Field(max_length=20_000)]
    input: Annotated[StrictStr, Field(max_length=1_000)]  # characters, or a JSON list of atoms
    compile: StrictBool = True
    length: Annotated[StrictInt, Field(ge=1, le=64)] | None = None  # of the inputs that the model is made for


class Example(BaseModel):
    """A program of the zoo."""

    name: str
    about: str
    program: str
    input: str


class RaspError(BaseModel):
    """What is wrong with a program, and where."""

    message: str
    line: int | None
    column: int | None


class RaspAnswer(BaseModel):
    """What a program computes, and what became of it as a model."""

    tokens: list[Any]
    values: list[dict[str, Any]]
    result: str | None
    output: list[Any] | None
    error: RaspError | None
    compiled: dict[str, Any] | None


def router(models: dict[str, Served], config: ServeConfig) -> APIRouter:
    """Programs, and examples of them."""
    workers = Workers(config.workers)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        workers.close()

    routes = APIRouter(tags=["rasp"], lifespan=lifespan)
    room = ThreadPool(config)

    def work(request: RaspRequest) -> Response:
        asked = {"text": request.program, "given": given_of(request.input), "compiled": request.compile}
        return as_answer(workers.run(asked | {"length": request.length}))

    @routes.post("/rasp", responses={200: {"model": RaspAnswer}, **described(400, 401, 408, 413, 429, 500, 503)})
    async def run(request: RaspRequest) -> Response:
        """Runs a program on an input, and compiles it."""
        return await room.work(work, request)

    @routes.get("/rasp/examples", responses=described(401, 429, 500, 503))
    async def examples() -> list[Example]:
        """The zoo."""
        return await room.work(zoo)

    return routes


def given_of(text: str) -> str | list[Any]:
    """An input as it was typed: characters, or a list of numbers, strings and truths."""
    if text.startswith("[") and text.endswith("]"):
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            return text
        if isinstance(values, list) and all(isinstance(value, str | int | float) for value in values):
            return values
    if not text:
        raise DataError("input: empty; a program needs at least one token")
    return text


def zoo() -> list[Example]:
    """The programs of `recipes/rasp`; each begins with a line that says what it does, and to what."""
    found = []
    for path in sorted((recipe_folder() / "rasp").glob("*.rasp")):
        program = path.read_text(encoding="utf-8")
        about = program.splitlines()[0].removeprefix("#").strip()
        shown = re.search(r"(\S+) ->", about)
        found.append(Example(name=path.stem, about=about, program=program, input=shown[1] if shown else "hello"))
    return found


class Workers:
    """Processes that run programs, begun when they are needed. One that takes too long is ended."""

    def __init__(self, count: int, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._idle: queue.LifoQueue[subprocess.Popen[bytes] | None] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(None)

    def run(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The answer of `show`; DataError if it takes too long. As many threads as there are processes may call."""
        worker = self._idle.get()
        fresh = worker is None or worker.poll() is not None
        if worker is None or fresh:
            worker = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            line = _ask(worker, asked, self.seconds + (STARTING if fresh else 0))
        except BaseException:
            _end(worker)
            self._idle.put(None)
            raise
        self._idle.put(worker)
        answer = json.loads(line)
        if "wrong" in answer:
            raise DataError(answer["wrong"])
        found: dict[str, Any] = answer["answer"]
        return found

    def close(self) -> None:
        """Ends all of them that are idle; the others end when nobody asks any more."""
        while True:
            try:
                worker = self._idle.get_nowait()
            except queue.Empty:
                return
            if worker is not None:
                _end(worker)


def _ask(worker: "subprocess.Popen[bytes]", asked: dict[str, Any], seconds: float) -> bytes:
    assert worker.stdin is not None
    assert worker.stdout is not None
    until = time.monotonic() + seconds
    worker.stdin.write(json.dumps(asked).encode() + b"\n")
    worker.stdin.flush()
    answer, out = bytearray(), worker.stdout.fileno()
    while not answer.endswith(b"\n"):
        left = until - time.monotonic()
        ready = left > 0 and select.select([out], [], [], left)[0]
        if not ready:
            raise DataError(f"program: takes more than {seconds:.0f} seconds; make it or its input smaller")
        piece = os.read(out, 1 << 20)
        if not piece or len(answer) > LARGEST:
            raise DataError("program: larger than what is computed here; make it or its input smaller")
        answer += piece
    return bytes(answer)


def _end(worker: "subprocess.Popen[bytes]") -> None:
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            pipe.close()
