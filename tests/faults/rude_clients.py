"""The processes beside the polite clients of `serve_load.py`: clients without manners, and a watcher of /health.

    python tests/faults/rude_clients.py rude HOST PORT      until its standard input closes; prints counts as JSON
    python tests/faults/rude_clients.py watch HOST PORT     the same; prints the seconds of every /health

A process for each, because the lock of a busy interpreter would delay what is measured. Every kind of rude client has
an address of its own, so that the server can tell them from the polite ones.
"""

import http.client
import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from typing import Any

UNREAD, SLOW, HOSTILE, IDLE, GREEDY = (f"127.0.0.{number}" for number in range(2, 7))
PROMPTS = [f"to be or not {number}" for number in range(32)]
WIDE = {"model": "language", "prompt": PROMPTS, "n": 8, "max_tokens": 1024}
HUGE = {**WIDE, "logprobs": 20, "stream": True}
IDLE_CONNECTIONS = 300
LARGEST_ERROR = 4096  # bytes of the body of a refusal

JSON = {"Content-Type": "application/json"}
HOSTILE_REQUESTS: tuple[tuple[str, bytes, dict[str, str]], ...] = (
    ("/v1/completions", b"{" + b",".join(b'"f%d": %d' % (n, n) for n in range(60_000)) + b"}", JSON),
    ("/translate", b"{" + b",".join(b'"f%d": %d' % (n, n) for n in range(60_000)) + b"}", JSON),
    ("/v1/completions", b"[" * 200_000, JSON),
    ("/v1/completions", b'{"model": "' + b"\\u00ff" * 150_000 + b'", "prompt": "a"}', JSON),
    ("/v1/completions", b'{"model": "language", "prompt": [' + b'"a",' * 200_000 + b'"a"]}', JSON),
    ("/score", b'{"model": "language", "text": ' + b"9" * 500_000 + b"}", JSON),
    (
        "/translate",
        b"&".join(b"q=%d" % n for n in range(80_000)),
        {"Content-Type": "application/x-www-form-urlencoded"},
    ),
    ("/translate", b"--x\r\n" * 100_000, {"Content-Type": "multipart/form-data; boundary=x"}),
)


class Rude:
    """All clients without manners, until `done`."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.seen: Counter[str] = Counter()
        self.done = threading.Event()

    def connect(self, address: str) -> socket.socket:
        """Connect from an address, with a small buffer for what is not read."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        connection.settimeout(60)
        connection.bind((address, 0))
        connection.connect((self.host, self.port))
        return connection

    def send_huge(self, address: str) -> socket.socket:
        """Request the largest stream that the limits allow."""
        connection, content = self.connect(address), json.dumps(HUGE).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        return connection

    def unread(self, seconds: float) -> None:
        """Read nothing of a stream, and hang up after some seconds."""
        with self.send_huge(UNREAD):
            self.seen["unread streams"] += 1
            self.done.wait(seconds)

    def slow(self) -> None:
        """Read a huge stream, a few bytes at a time."""
        with self.send_huge(SLOW) as connection:
            self.seen["slow streams"] += 1
            while connection.recv(1000) and not self.done.wait(0.05):
                pass

    def hostile(self) -> None:
        """Send a body that is large and wrong. The refusal must be short."""
        path, content, headers = random.choice(HOSTILE_REQUESTS)
        status, body, _ = self.post(HOSTILE, path, content, headers)
        self.seen[f"hostile {status}"] += 1
        if not 400 <= status < 500 or len(body) > LARGEST_ERROR:
            self.seen[f"WRONG: {path} {content[:20]!r}: status {status} with {len(body)} bytes"] += 1
        self.done.wait(0.2)

    def idle(self) -> None:
        """Open many connections and send nothing."""
        connections = []
        for _ in range(IDLE_CONNECTIONS):
            try:
                connections.append(self.connect(IDLE))
            except OSError:
                self.seen["idle connections refused"] += 1
        self.seen["idle connections"] += len(connections)
        self.done.wait(10)
        for connection in connections:
            connection.close()

    def greedy(self) -> None:
        """Request as many rows as possible, again and again."""
        status, _, retry = self.post(GREEDY, "/v1/completions", json.dumps(WIDE).encode(), JSON)
        self.seen[f"greedy {status}"] += 1
        if status != 200:
            self.done.wait(min(2.0, retry) * random.random())

    def post(self, address: str, path: str, content: bytes, headers: dict[str, str]) -> tuple[int, bytes, float]:
        """Return the status, the body and Retry-After of a response."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120, source_address=(address, 0))
        try:
            connection.request("POST", path, content, headers)
            response = connection.getresponse()
            return response.status, response.read(), float(response.headers.get("Retry-After", 0))
        finally:
            connection.close()

    def repeat(self, act: Any, *values: Any) -> None:
        """Repeat something until the end."""
        while not self.done.is_set():
            try:
                act(*values)
            except (OSError, http.client.HTTPException):
                self.seen[f"{act.__name__}: disconnected"] += 1
                self.done.wait(0.2)

    def run(self) -> None:
        """Start all clients, and print what they have seen when standard input closes."""
        roles = [(self.unread, 2.0), (self.unread, 10.0), (self.unread, 600.0), (self.unread, 600.0), (self.slow,)]
        roles += [(self.hostile,), (self.hostile,), (self.idle,), (self.greedy,), (self.greedy,)]
        for role in roles:
            threading.Thread(target=self.repeat, args=role, daemon=True).start()
        sys.stdin.read()
        self.done.set()
        print(json.dumps(self.seen), flush=True)


def watch(host: str, port: int) -> None:
    """Poll /health until standard input closes, and print the seconds of each response."""
    seconds: list[float] = []
    closed = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
    while not closed.wait(0.03):
        started = time.monotonic()
        connection = http.client.HTTPConnection(host, port, timeout=120)
        try:
            connection.request("GET", "/health")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            seconds.append(120.0)
        finally:
            connection.close()
        seconds.append(time.monotonic() - started)
    print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    role, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    Rude(host, port).run() if role == "rude" else watch(host, port)
