"""Serve 200 concurrent clients, some slow, some that disconnect, and send SIGTERM under load.

    python tests/faults/serve_load.py --clients 200 --seconds 60

Every response is 200, 429 or 503; every 200 has the right text for its seed; /health responds within a second; memory
stays flat; after SIGTERM the server drains and exits with 0. Prints the counts, and exits with 1 if any of this is
violated. Not part of `make test`, because it needs the whole machine.
"""

import argparse
import http.client
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from serve_folders import language_model, translator

SEEDS = 40  # different requests


class Load:
    """All clients and their observations."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.right: dict[int, str] = {}
        self.slowest_health = 0.0
        self.terminated = threading.Event()

    def body(self, seed: int, stream: bool) -> dict[str, Any]:
        """Return a request whose response depends only on its seed."""
        prompt = "to be or not " * (1 + seed % 4)
        request = {"model": "language", "prompt": prompt, "seed": seed, "max_tokens": 10 + 5 * (seed % 20)}
        return {**request, "temperature": 0.9, "stream": stream}

    def send(self, seed: int, manner: str) -> None:
        """Send one request: plain, streamed, read slowly, or disconnected early ("rude")."""
        stream = manner != "plain"
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        try:
            content = json.dumps(self.body(seed, stream))
            connection.request("POST", "/v1/completions", content, {"Content-Type": "application/json"})
            if manner == "rude":
                time.sleep(random.random() * 0.2)
                self.seen["hung up"] += 1
                connection.close()
                time.sleep(random.random() * 2)  # like a user who clicks again, not a flood
                return
            response = connection.getresponse()
            self.seen[str(response.status)] += 1
            text = self.read_slowly(response) if manner == "slow" else response.read().decode()
            if response.status == 200:
                self.compare(seed, text_of(text, stream))
            elif response.status in (429, 503):
                wait = min(2.0, float(response.headers["Retry-After"]))
                if not self.terminated.is_set():
                    time.sleep(wait * random.random())
        except (OSError, http.client.HTTPException) as error:
            # Once the server has drained, connections are refused.
            name = "refused at the end" if self.terminated.is_set() else f"broken: {error!r}"
            self.seen[name] += 1
        finally:
            connection.close()

    def read_slowly(self, response: http.client.HTTPResponse) -> str:
        """Read a response a few bytes at a time."""
        whole = b""
        while piece := response.read1(300):
            whole += piece
            time.sleep(0.002)
        return whole.decode()

    def compare(self, seed: int, text: str) -> None:
        """Require that every response to one seed is the same."""
        if text != self.right.setdefault(seed, text):
            self.wrong.append(f"seed {seed}: {text!r} instead of {self.right[seed]!r}")

    def client(self, number: int) -> None:
        """Send requests until the server is terminated."""
        manner = ("plain", "stream", "slow", "rude")[number % 4]
        while not self.terminated.is_set():
            self.send(random.randrange(SEEDS), manner)

    def watch(self) -> None:
        """Poll /health and record its slowest response."""
        while not self.terminated.is_set():
            started = time.monotonic()
            connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
            connection.request("GET", "/health")
            connection.getresponse().read()
            connection.close()
            self.slowest_health = max(self.slowest_health, time.monotonic() - started)
            time.sleep(0.2)


def text_of(text: str, stream: bool) -> str:
    """Return the generated text of a response."""
    if not stream:
        return str(json.loads(text)["choices"][0]["text"])
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events[-1] == "[DONE]", events[-1]
    return "".join(choice["text"] for event in events[:-1] for choice in json.loads(event)["choices"])


def memory(process: int) -> float:
    """Return the resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def main() -> int:
    """Start a server, run the load, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folders = [language_model(Path(temporary)), translator(Path(temporary), "numbers")]
        command = [sys.executable, "-m", "allyouneed", "serve", *map(str, folders), "--port", "0", "--queue", "100"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                return run(server, options.clients, options.seconds)
            finally:
                server.kill()


def run(server: "subprocess.Popen[str]", clients: int, seconds: float) -> int:
    """Run all clients against a server, terminate it, and print the verdict."""
    assert server.stdout is not None
    host, port = server.stdout.readline().split("http://")[1].split()[0].split(":")
    load = Load(host, int(port))
    for seed in range(SEEDS):  # each alone, as the reference
        load.send(seed, "plain")
    alone = load.seen["200"]
    threads = [threading.Thread(target=load.client, args=(number,)) for number in range(clients)]
    threads.append(threading.Thread(target=load.watch))
    for thread in threads:
        thread.start()
    time.sleep(seconds * 0.3)
    early = memory(server.pid)
    time.sleep(seconds * 0.5)
    late = memory(server.pid)
    together = load.seen["200"] - alone
    server.send_signal(signal.SIGTERM)
    started = time.monotonic()
    time.sleep(0.5)
    load.terminated.set()
    for thread in threads:
        thread.join()
    status = server.wait(timeout=60)
    drained = time.monotonic() - started
    print(f"responses: {dict(load.seen)}; wrong: {len(load.wrong)}; slowest /health {load.slowest_health:.2f} s")
    print(f"memory {early:.0f} -> {late:.0f} MiB; SIGTERM to exit {status} in {drained:.1f} s")
    known = {"200", "429", "503", "hung up", "refused at the end"}
    bad = [*load.wrong[:5], *(name for name in load.seen if name not in known)]
    bad += ["/health took too long"] if load.slowest_health > 1 else []
    bad += ["memory grew"] if late > early * 1.2 + 20 else []
    bad += [] if together > SEEDS else [f"only {together} responses: too few to be conclusive"]
    bad += [f"exit status {status}"] if status else []
    print("\n".join(["FAILED:", *bad]) if bad else "ok")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
