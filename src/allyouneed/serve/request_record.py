"""What is recorded about a request while it is served: its id, its model, its tokens, its times and its status.

A context variable holds the record of the current request. Threads and tasks that a request starts inherit it, so no
function passes it on. The access log and the metrics read it when the response is complete.
"""

import re
import secrets
import time
from contextvars import ContextVar
from dataclasses import dataclass, field

REQUEST_ID = re.compile(r"[!-~]{1,128}")  # printable ASCII without spaces: safe in headers and in logs
DISCONNECTED = 499  # nginx's status of a client that left before its response


def new_id() -> str:
    """Return a random request id."""
    return secrets.token_hex(8)


@dataclass(eq=False)
class RequestRecord:
    """The record of one request. Times are those of `time.perf_counter`; None: that has not happened."""

    id: str = field(default_factory=new_id)
    start: float = field(default_factory=time.perf_counter)
    model: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    queued: float | None = None  # when it entered the queue of an engine
    taken: float | None = None  # when a worker took its first row or item
    first_token: float | None = None
    status: int | None = None  # of the response
    endpoint: str = "other"  # the path of its route
    end: float | None = None  # when the response was complete

    def mark_queued(self) -> None:
        """Record that the request waits for a worker."""
        self.queued = self.queued or time.perf_counter()

    def mark_taken(self) -> None:
        """Record that a worker processes the request. Called from worker threads."""
        self.taken = self.taken or time.perf_counter()

    def mark_first_token(self) -> None:
        """Record that a token of the request was generated. Called from worker threads."""
        self.first_token = self.first_token or time.perf_counter()

    def complete(self, endpoint: str) -> None:
        """Record that the response is complete. Without a response, the client has left."""
        self.endpoint, self.status, self.end = endpoint, self.status or DISCONNECTED, time.perf_counter()

    @property
    def total_seconds(self) -> float | None:
        """Time from the arrival of the request to the end of its response."""
        return None if self.end is None else self.end - self.start

    @property
    def queue_seconds(self) -> float | None:
        """Time in the queue."""
        return None if self.queued is None or self.taken is None else self.taken - self.queued

    @property
    def first_token_seconds(self) -> float | None:
        """Time from the arrival of the request to its first token."""
        return None if self.first_token is None else self.first_token - self.start


_CURRENT: ContextVar[RequestRecord] = ContextVar("request_record")


def set_record(record: RequestRecord) -> None:
    """Make a record that of the current request."""
    _CURRENT.set(record)


def current_record() -> RequestRecord:
    """Return the record of the current request, or an unused one outside of requests."""
    return _CURRENT.get(None) or RequestRecord()
