"""HTTP as it arrives: uvicorn's fast parser, which knows no end of headers, with a bound on them.

A request's line and headers come before any of our own checks; what never ends would fill the memory.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST = 1 << 16  # bytes before the body


class Protocol(HttpToolsProtocol):
    """A connection."""

    _head = 0  # bytes since the last request ended, while headers are read; the piece that it ended in does not count
    _in_body = _ended = False

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Called by the parser; another request may follow."""
        self._head, self._in_body, self._ended = 0, False, True
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._ended = False
        super().data_received(data)
        if self._in_body or self._ended or self.transport.is_closing():
            return
        self._head += len(data)
        if self._head > MOST:
            self.send_400_response(f"more than {MOST:,} bytes of headers")
