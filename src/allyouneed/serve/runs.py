"""`/runs`: the training runs of a folder and their learning curves, while they are being written.

A run name is a single path component below that folder, and symlinks are not followed, so no other file can be read.
Only complete lines of a log count, and malformed ones are skipped: this shows curves, it does not validate runs.
"""

import json
import os
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi import Path as PathPart
from pydantic import BaseModel

from allyouneed.serve.backend import Backend
from allyouneed.serve.errors import Refusal, error_responses
from allyouneed.serve.thread_pool import json_response
from allyouneed.storage import is_locked

MAX_POINTS = 2_000  # of a curve
MAX_RUNS = 500  # in the list, newest first
TAIL = 64 << 10  # bytes at the end of a log from which progress is read
MAX_LOG = 256 << 20  # bytes
MAX_RECIPE = 200_000  # bytes
Record = dict[str, Any]


class RunInfo(BaseModel):
    """The progress of a run."""

    name: str
    state: Literal["running", "stopped", "finished"]  # stopped: no process writes to it, and it has not finished
    step: int
    fraction: float | None  # of its budget
    updated: str
    last: Record


class RunLog(BaseModel):
    """The curves of a run."""

    name: str
    recipe: str
    steps: list[Record]
    evaluations: list[Record]
    end: Record | None


def router(backend: Backend) -> APIRouter:
    """Return the endpoints of runs and their logs."""
    routes = APIRouter(tags=["runs"])
    pool, folder = backend.add_pool(), Path(backend.config.runs)

    def curves(name: str, after: int) -> Response:
        found = read_run(folder, name, after)
        if found is None:
            raise Refusal(404, f"runs: there is no run {name!r}", param="name")
        return json_response(found.model_dump())

    @routes.get("/runs", responses={200: {"model": list[RunInfo]}, **error_responses(401, 429, 500, 503)})
    async def runs() -> Response:
        """List all runs, the most recently changed first."""
        return await pool.run(lambda: json_response([one.model_dump() for one in list_runs(folder)]))

    @routes.get("/runs/{name}", responses={200: {"model": RunLog}, **error_responses(400, 401, 404, 429, 500, 503)})
    async def run(
        name: Annotated[str, PathPart(max_length=255)],
        after: Annotated[int, Query(ge=-1, le=1 << 60, description="return only records of later steps")] = -1,
    ) -> Response:
        """Return the curves of a run."""
        return await pool.run(curves, name, after)

    return routes


def list_runs(folder: Path) -> list[RunInfo]:
    """Return the runs of a folder, the most recently changed first."""
    found = []
    for path in _run_folders(folder):
        log = path / "log.jsonl"
        try:
            changed = log.stat(follow_symlinks=False).st_mtime
            last = list(_records(_tail(log)))
        except OSError:  # deleted meanwhile
            continue
        found.append((changed, path, last))
    found.sort(key=lambda one: -one[0])
    return [_info(path, changed, records) for changed, path, records in found[:MAX_RUNS]]


def _info(path: Path, changed: float, records: list[Record]) -> RunInfo:
    end = next((one for one in reversed(records) if one.get("kind") == "end"), None)
    step = next((one for one in reversed(records) if one.get("kind") == "step"), {})
    measured = next((one for one in reversed(records) if one.get("kind") == "evaluation"), {})
    newest = max((_step(one) for one in records), default=0)
    finished = end is not None and _step(end) >= newest
    return RunInfo(
        name=path.name,
        state="finished" if finished else "running" if is_locked(path) else "stopped",
        step=newest,
        fraction=1.0 if finished else _fraction(_recipe(path), {**measured, **step}),
        updated=datetime.fromtimestamp(changed, UTC).isoformat(timespec="seconds"),
        last={**measured, **step, **(end or {})},
    )


def read_run(folder: Path, name: str, after: int = -1) -> RunLog | None:
    """Return the thinned curves of a run, or None if there is no such run."""
    path = next((path for path in _run_folders(folder) if path.name == name), None)
    if path is None:
        return None
    try:
        with _open(path / "log.jsonl") as file:
            records = [one for one in _records(file.read(MAX_LOG)) if _step(one) > after]
    except OSError:
        return None
    by_kind = {kind: [one for one in records if one.get("kind") == kind] for kind in ("step", "evaluation", "end")}
    return RunLog(
        name=name,
        recipe=_recipe(path),
        steps=thinned(by_kind["step"]),
        evaluations=thinned(by_kind["evaluation"]),
        end=by_kind["end"][-1] if by_kind["end"] else None,
    )


def thinned(records: list[Record], most: int = MAX_POINTS) -> list[Record]:
    """Return at most `most` evenly spaced records, including the first and the last."""
    if len(records) <= most:
        return records
    return [records[round(place * (len(records) - 1) / (most - 1))] for place in range(most)]


def _run_folders(folder: Path) -> Iterator[Path]:
    """Yield the subfolders with a log. Symlinks are skipped."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        path = Path(entry.path)
        log = path / "log.jsonl"
        if entry.is_dir(follow_symlinks=False) and not log.is_symlink() and log.is_file():
            yield path


def _open(path: Path) -> Any:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _tail(path: Path) -> bytes:
    with _open(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        data: bytes = file.read()
        return data if size <= TAIL else data.partition(b"\n")[2]


def _records(data: bytes) -> Iterator[Record]:
    for line in data.split(b"\n")[:-1]:  # the text after the last newline is still being written
        try:
            record = json.loads(line, parse_constant=lambda name: None)  # NaN and Infinity become null
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def _step(record: Record) -> int:
    step = record.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) else 0


def _recipe(path: Path) -> str:
    try:
        with _open(path / "recipe.toml") as file:
            data: bytes = file.read(MAX_RECIPE)
    except OSError:
        return ""
    return data.decode("utf-8", "replace")


def _fraction(recipe: str, record: Record) -> float | None:
    """Return the fraction of the budget that is spent, or None if it is unknown."""
    try:
        budget = tomllib.loads(recipe)["train"]["budget"]
        ((name, most),) = budget.items()
        spent = record["seconds"] / 60 if name == "minutes" else record["step" if name == "steps" else name]
        return round(min(1.0, max(0.0, spent / most)), 4)
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
