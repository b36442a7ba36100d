"""HTTP as it arrives: uvicorn's fast parser, which knows no end of a request, with bounds on its headers and its time.

A request's line and headers come before any of our own checks: what never ends would fill the memory, and what comes
byte by byte would keep a connection, of which there are only so many, for ever. So would a body, also after its answer.

    silence | line and headers | body | nothing of an answer taken      at most `arrival` seconds each

Between two requests uvicorn's own bound holds. Nobody who has sent a request is hurried: an answer takes its time, and
so does whoever reads it, as long as they read. If one is under way, the connection ends behind it.

Requests may follow each other before they are answered, but each that waits takes a hundred times the memory that it
took on the way: only so many wait.
"""

import asyncio
import json
from typing import Any, Literal

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from allyouneed.serve.errors import Refusal

MOST = 1 << 16  # bytes before the body
AHEAD = 128  # requests on one connection that wait for the answer to another


class Protocol(HttpToolsProtocol):
    """A connection."""

    def __init__(self, *args: Any, arrival: float, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._arrival = arrival
        self._part: Literal["headers", "body"] | None = None  # of a request that has begun and not ended
        self._head = 0  # bytes since the last request ended, while headers are read, but for the piece it ended in
        self._ended = False  # whether a request did in this piece
        self._alarm: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._untaken = 0  # bytes of answers, at the last look
        self._asked: list[RequestResponseCycle] = []  # and not answered yet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the event loop."""
        super().connection_made(transport)
        self._set_alarm()
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._stop_alarm()
        if self._look is not None:
            self._look.cancel()
        for cycle in self._asked:  # uvicorn tells the last one alone, and others would write where nothing is
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """Called by the event loop: something was taken."""
        self._untaken = 0
        super().resume_writing()

    def on_message_begin(self) -> None:
        """Called by the parser; another request may have ended in the same piece."""
        self._part = "headers"
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._part = "body"
        self._stop_alarm()
        super().on_headers_complete()
        self._asked = [*(cycle for cycle in self._asked if not cycle.response_complete), self.cycle]
        if len(self.pipeline) > AHEAD:
            raise ValueError  # the parser ends, and `send_400_response` is called

    def on_message_complete(self) -> None:
        """Called by the parser; another request may follow."""
        self._head, self._part, self._ended = 0, None, True
        self._stop_alarm()
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._ended = False
        if self._part is None:
            self._part = "headers"  # or an empty line before them
            self._stop_alarm()
        super().data_received(data)
        if self._part is None or self.transport.is_closing():
            return
        if self._part == "headers" and not self._ended:
            self._head += len(data)
            if self._head > MOST:
                self.send_400_response(f"more than {MOST:,} bytes of headers")
                return
        if self._alarm is None:  # most requests come in one piece and need none
            self._set_alarm()

    def send_400_response(self, msg: str) -> None:
        """Ends the connection."""
        super().send_400_response(msg if len(self.pipeline) <= AHEAD else f"more than {AHEAD} requests at once")

    def _set_alarm(self) -> None:
        self._alarm = self.loop.call_later(self._arrival, self._late)

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _late(self) -> None:
        """What should have come did not."""
        self._alarm = None
        if self.transport.is_closing():
            return
        if self.flow.read_paused:  # it may have come: nobody looks, as requests before it are being answered
            self._set_alarm()
            return
        if self._part == "headers" and (self.cycle is None or self.cycle.response_complete):
            message = f"the line and headers of the request did not come within {self._arrival:g} seconds"
            self.transport.write(_answer(Refusal(408, message, code="request_timeout")))
        # Closes at once, or behind the answer that is under way. Who waits for a body answers for itself (`gate.py`).
        self.shutdown()

    def _look_later(self) -> None:
        self._look = self.loop.call_later(self._arrival, self._look_whether_taken)

    def _look_whether_taken(self) -> None:
        """Ends a connection on which an answer waits that nobody takes. It could not be closed: that waits, too.

        While writing is paused, or the connection closes, nothing is added: what waits gets less, or nobody reads.
        """
        closing = self.transport.is_closing()
        untaken = self.transport.get_write_buffer_size() if closing or self.flow.write_paused else 0
        if untaken and untaken == self._untaken:
            self.transport.abort()
            return
        self._untaken = untaken
        self._look_later()


def _answer(refusal: Refusal) -> bytes:
    """A refusal as it is sent where no application has begun to answer."""
    content = json.dumps(refusal.tree).encode()
    head = f"content-type: application/json\r\ncontent-length: {len(content)}\r\nconnection: close\r\n\r\n"
    return STATUS_LINE[refusal.status] + head.encode() + content
