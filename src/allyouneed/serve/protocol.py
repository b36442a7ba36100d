"""The HTTP protocol of a connection: uvicorn's httptools parser with bounds on the size and the time of a request.

uvicorn bounds neither. The request line and headers arrive before any of our own checks: an endless one would fill the
memory, and a client that sends byte by byte would occupy one of the limited connections for ever. The same holds for a
body, even after its response has been sent.

    silence | request line and headers | body | response not read      at most `arrival` seconds each

Between two requests uvicorn's keep-alive timeout applies. No timeout applies while a response is being produced, or
while the client keeps reading it. A timeout during a response closes the connection after that response.

The number of open connections is bounded, also for each address (`serve/connections.py`).

Clients may pipeline requests. A pipelined request takes a hundred times the memory that it took on the wire, so their
number is bounded.
"""

import asyncio
import json
from typing import Any, Literal

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from allyouneed.serve.clients import LOCAL
from allyouneed.serve.connections import Connections
from allyouneed.serve.errors import Refusal

MAX_HEAD = 1 << 16  # bytes before the body
MAX_PIPELINED = 128  # requests of one connection that wait for an earlier response


class Protocol(HttpToolsProtocol):
    """A connection."""

    def __init__(self, *args: Any, arrival: float, open_connections: Connections, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._arrival = arrival
        self._open_connections = open_connections
        self._address: str | None = None  # under which this connection is counted
        self._part: Literal["headers", "body"] | None = None  # the part of a request that is being received
        self._head_bytes = 0  # bytes of the current request's head, without the chunk in which the previous one ended
        self._ended = False  # whether a request ended in this chunk
        self._arrival_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        self._unread = 0  # bytes of responses that the client had not read at the last check
        self._open_cycles: list[RequestResponseCycle] = []  # requests without a complete response

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the event loop."""
        super().connection_made(transport)
        try:
            self._address = self._open_connections.add(self, self.client[0] if self.client else LOCAL)
            self._start_arrival_timer()
        except Refusal as refusal:
            transport.write(_response(refusal))
            transport.close()
        self._start_read_timer()

    def evict(self) -> None:
        """Close the connection in favour of a new one."""
        self._leave()
        self.transport.abort()

    @property
    def sending(self) -> bool:
        """True if a part of a response has not been sent: a client may read slowly."""
        return self.transport.get_write_buffer_size() > 0

    def _leave(self) -> None:
        """Stop counting this connection."""
        if self._address is not None:
            self._open_connections.remove(self, self._address)
            self._address = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._leave()
        self._stop_arrival_timer()
        if self._read_timer is not None:
            self._read_timer.cancel()
        for cycle in self._open_cycles:  # uvicorn notifies only the last one; the others would write to a closed socket
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """Called by the event loop: the client has read something."""
        self._unread = 0
        super().resume_writing()

    def on_message_begin(self) -> None:
        """Called by the parser. Another request may have ended in the same chunk."""
        self._part = "headers"
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._part = "body"
        self._stop_arrival_timer()
        if self._address is not None:
            self._open_connections.mark_busy(self, self._address)
        super().on_headers_complete()
        self._open_cycles = [*(cycle for cycle in self._open_cycles if not cycle.response_complete), self.cycle]
        if len(self.pipeline) > MAX_PIPELINED:
            raise ValueError  # stops the parser, which calls `send_400_response`

    def on_message_complete(self) -> None:
        """Called by the parser. Another request may follow."""
        self._head_bytes, self._part, self._ended = 0, None, True
        self._stop_arrival_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Called after each response. Another request may be waiting."""
        if self._address is not None and not self.pipeline:
            self._open_connections.mark_idle(self, self._address)
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._ended = False
        if self._part is None:
            self._part = "headers"  # or an empty line before them
            self._stop_arrival_timer()
        super().data_received(data)
        if self._part is None or self.transport.is_closing():
            return
        if self._part == "headers" and not self._ended:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self.send_400_response(f"more than {MAX_HEAD:,} bytes of headers")
                return
        if self._arrival_timer is None:  # most requests arrive in one chunk and need no timer
            self._start_arrival_timer()

    def send_400_response(self, msg: str) -> None:
        """Send an error and close the connection."""
        too_many = len(self.pipeline) > MAX_PIPELINED
        super().send_400_response(f"more than {MAX_PIPELINED} requests at once" if too_many else msg)

    def _start_arrival_timer(self) -> None:
        self._arrival_timer = self.loop.call_later(self._arrival, self._on_arrival_timeout)

    def _stop_arrival_timer(self) -> None:
        if self._arrival_timer is not None:
            self._arrival_timer.cancel()
            self._arrival_timer = None

    def _on_arrival_timeout(self) -> None:
        self._arrival_timer = None
        if self.transport.is_closing():
            return
        if self.flow.read_paused:  # the data may be in the socket: reading is paused during earlier responses
            self._start_arrival_timer()
            return
        if self._part == "headers" and (self.cycle is None or self.cycle.response_complete):
            message = f"the request line and headers did not arrive within {self._arrival:g} seconds"
            self.transport.write(_response(Refusal(408, message, code="request_timeout")))
        # Closes now, or after the response in progress. `bodies.py` sends its own 408 while it waits for a body.
        self.shutdown()

    def _start_read_timer(self) -> None:
        self._read_timer = self.loop.call_later(self._arrival, self._check_reading)

    def _check_reading(self) -> None:
        """Abort the connection if the client has read nothing since the last check. Closing it would wait, too.

        Nothing is added to the write buffer while writing is paused or the connection is closing. An unchanged size
        therefore means that the client reads nothing.
        """
        closing = self.transport.is_closing()
        unread = self.transport.get_write_buffer_size() if closing or self.flow.write_paused else 0
        if unread and unread == self._unread:
            self.transport.abort()
            return
        self._unread = unread
        self._start_read_timer()


def _response(refusal: Refusal) -> bytes:
    """Return a refusal as raw HTTP, for requests that have not reached the application."""
    tree = refusal.tree
    content = json.dumps(tree).encode()
    head = f"content-type: application/json\r\ncontent-length: {len(content)}\r\nconnection: close\r\n"
    head += "" if refusal.retry is None else f"retry-after: {refusal.retry}\r\n"
    head += f"x-request-id: {tree['error']['request_id']}\r\n\r\n"
    return STATUS_LINE[refusal.status] + head.encode() + content
