"""The access log: one line for each request, when its response is complete."""

import logging
from typing import Any
from urllib.parse import quote

from starlette.types import Scope

from allyouneed.serve.clients import client_of
from allyouneed.serve.request_record import RequestRecord

log = logging.getLogger("allyouneed.access")
LONGEST_PATH = 500  # characters in the log


def log_access(scope: Scope, record: RequestRecord) -> None:
    """Log a request that is complete."""
    if log.isEnabledFor(logging.INFO):
        entry = access_entry(scope, record)
        log.info("%s", text_line(entry), extra={"entry": entry})


def access_entry(scope: Scope, record: RequestRecord) -> dict[str, Any]:
    """Return the fields of a request in the access log. A field is None if it does not apply."""
    used = record.model is not None
    return {
        "request_id": record.id,
        "client": client_of(scope),
        "method": scope["method"],
        "path": quote(scope["path"][:LONGEST_PATH], safe="/:@!$&'()*+,;=~"),
        "model": record.model,
        "status": record.status,
        "prompt_tokens": record.prompt_tokens if used else None,
        "completion_tokens": record.completion_tokens if used else None,
        "queue_seconds": _rounded(record.queue_seconds),
        "first_token_seconds": _rounded(record.first_token_seconds),
        "total_seconds": _rounded(record.total_seconds),
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
