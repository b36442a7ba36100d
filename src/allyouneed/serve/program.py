"""`/rasp`: run and compile RASP programs while the user types them.

Programs are untrusted. The language has its own limits (`rasp/limits.py`) and cannot load files here. In addition,
programs run in separate processes that hold nothing else and are killed after a timeout.
"""

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

from allyouneed.config import Config
from allyouneed.errors import DataError
from allyouneed.processes import BoundedProcesses
from allyouneed.serve.backend import Backend
from allyouneed.serve.errors import error_responses
from allyouneed.serve.thread_pool import json_response
from allyouneed.training.recipe_files import recipe_folder

TIMEOUT = 8.0  # seconds for one program
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


def router(backend: Backend) -> APIRouter:
    """Return the endpoints that run programs and list examples."""
    processes = BoundedProcesses(COMMAND, "program", backend.config.threads, TIMEOUT)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        processes.close()

    routes = APIRouter(tags=["rasp"], lifespan=lifespan)
    pool = backend.add_pool()

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
