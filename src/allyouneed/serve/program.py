"""`/rasp`: run and compile RASP programs while the user types them.

Programs are untrusted. The language has its own limits (`rasp/limits.py`) and cannot load files here. In addition,
programs run in separate processes that hold nothing else and are killed after a timeout.
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
from allyouneed.serve.errors import error_responses
from allyouneed.serve.thread_pool import ThreadPool, json_response
from allyouneed.training.recipe_files import recipe_folder

TIMEOUT = 8.0  # seconds for one program
START_TIMEOUT = 60.0  # seconds to start a process, which imports torch
MAX_RESPONSE = 64 << 20  # bytes
COMMAND = [sys.executable, "-c", "from allyouneed.rasp.compiler.explain import main; main()"]


class RaspRequest(Config):
    """A program and an input."""

    program: Annotated[StrictStr, Field(max_length=20_000)]
    input: Annotated[StrictStr, Field(max_length=1_000)]  # characters, or a JSON list of atoms
    compile: StrictBool = True
    length: Annotated[StrictInt, Field(ge=1, le=64)] | None = None  # of the inputs that the compiled model accepts


class Example(BaseModel):
    """A program of `recipes/rasp`."""

    name: str
    about: str
    program: str
    input: str


class ProgramError(BaseModel):
    """An error in a program and its position."""

    message: str
    line: int | None
    column: int | None


class RaspResponse(BaseModel):
    """The values of a program, and its compiled model."""

    tokens: list[Any]
    values: list[dict[str, Any]]
    result: str | None
    output: list[Any] | None
    error: ProgramError | None
    compiled: dict[str, Any] | None


def router(config: ServeConfig) -> APIRouter:
    """Return the endpoints that run programs and list examples."""
    processes = ProgramProcesses(config.threads)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        processes.close()

    routes = APIRouter(tags=["rasp"], lifespan=lifespan)
    pool = ThreadPool(config)

    def run_program(request: RaspRequest) -> Response:
        task = {"text": request.program, "given": parse_input(request.input), "compiled": request.compile}
        return json_response(processes.run(task | {"length": request.length}))

    @routes.post(
        "/rasp", responses={200: {"model": RaspResponse}, **error_responses(400, 401, 408, 413, 429, 500, 503)}
    )
    async def run(request: RaspRequest) -> Response:
        """Run a program on an input, and compile it."""
        return await pool.run(run_program, request)

    @routes.get("/rasp/examples", responses=error_responses(401, 429, 500, 503))
    async def examples() -> list[Example]:
        """List example programs."""
        return await pool.run(example_programs)

    return routes


def parse_input(text: str) -> str | list[Any]:
    """Parse an input: a JSON list of numbers, strings and booleans, or else plain characters."""
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


def example_programs() -> list[Example]:
    """Return the programs of `recipes/rasp`. The first line of each describes it, with an example input."""
    found = []
    for path in sorted((recipe_folder() / "rasp").glob("*.rasp")):
        program = path.read_text(encoding="utf-8")
        about = program.splitlines()[0].removeprefix("#").strip()
        shown = re.search(r"(\S+) ->", about)
        found.append(Example(name=path.stem, about=about, program=program, input=shown[1] if shown else "hello"))
    return found


class ProgramProcesses:
    """Processes that run programs. They start on demand and are killed after a timeout."""

    def __init__(self, count: int, seconds: float = TIMEOUT) -> None:
        self.seconds = seconds
        self._idle: queue.LifoQueue[subprocess.Popen[bytes] | None] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(None)

    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        """Run a task and return its result, or raise DataError on a timeout. Wait while no process is free."""
        process = self._idle.get()
        fresh = process is None or process.poll() is not None
        if process is None or fresh:
            process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            line = _exchange(process, task, self.seconds + (START_TIMEOUT if fresh else 0))
        except BaseException:
            _kill(process)
            self._idle.put(None)
            raise
        self._idle.put(process)
        response = json.loads(line)
        if "wrong" in response:
            raise DataError(response["wrong"])
        found: dict[str, Any] = response["answer"]
        return found

    def close(self) -> None:
        """Kill the idle processes. The others exit when their input is closed."""
        while True:
            try:
                process = self._idle.get_nowait()
            except queue.Empty:
                return
            if process is not None:
                _kill(process)


def _exchange(process: "subprocess.Popen[bytes]", task: dict[str, Any], seconds: float) -> bytes:
    """Send a task to a process and return the line that it answers with."""
    assert process.stdin is not None
    assert process.stdout is not None
    until = time.monotonic() + seconds
    process.stdin.write(json.dumps(task).encode() + b"\n")
    process.stdin.flush()
    line, out = bytearray(), process.stdout.fileno()
    while not line.endswith(b"\n"):
        left = until - time.monotonic()
        ready = left > 0 and select.select([out], [], [], left)[0]
        if not ready:
            raise DataError(f"program: took more than {seconds:.0f} seconds; make it or its input smaller")
        chunk = os.read(out, 1 << 20)
        if not chunk or len(line) > MAX_RESPONSE:
            raise DataError("program: exceeds the limits of the server; make it or its input smaller")
        line += chunk
    return bytes(line)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
