"""200 clients at once, some slow, some rude, and a SIGTERM in the middle.

    python tests/faults/serve_load.py --clients 200 --seconds 60

Every answer is 200, 429 or 503; every 200 is the right text for its own seed; /health answers within a second; memory
stays flat; and after SIGTERM the server drains and exits with 0. Prints what it saw, and exits with 1 if any of it is
not so. Not a test of `make test`: it wants the machine for itself.
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

SEEDS = 40  # different questions


class Load:
    """All clients, and what they saw."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.right: dict[int, str] = {}
        self.slowest_health = 0.0
        self.terminated = threading.Event()

    def body(self, seed: int, stream: bool) -> dict[str, Any]:
        """A question whose answer depends on its seed alone."""
        prompt = "to be or not " * (1 + seed % 4)
        asked = {"model": "language", "prompt": prompt, "seed": seed, "max_tokens": 10 + 5 * (seed % 20)}
        return {**asked, "temperature": 0.9, "stream": stream}

    def ask(self, seed: int, manner: str) -> None:
        """One request, in a good or a bad manner."""
        stream = manner != "plain"
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        try:
            content = json.dumps(self.body(seed, stream))
            connection.request("POST", "/v1/completions", content, {"Content-Type": "application/json"})
            if manner == "rude":
                time.sleep(random.random() * 0.2)
                self.seen["hung up"] += 1
                connection.close()
                time.sleep(random.random() * 2)  # a person who clicks again, not a flood
                return
            answer = connection.getresponse()
            self.seen[str(answer.status)] += 1
            text = self.read_slowly(answer) if manner == "slow" else answer.read().decode()
            if answer.status == 200:
                self.compare(seed, said(text, stream))
            elif answer.status in (429, 503):
                wait = min(2.0, float(answer.headers["Retry-After"]))
                if not self.terminated.is_set():
                    time.sleep(wait * random.random())
        except (OSError, http.client.HTTPException) as error:
            # Once the server has drained there is nobody to answer.
            name = "refused at the end" if self.terminated.is_set() else f"broken: {error!r}"
            self.seen[name] += 1
        finally:
            connection.close()

    def read_slowly(self, answer: http.client.HTTPResponse) -> str:
        """A few bytes at a time."""
        whole = b""
        while piece := answer.read1(300):
            whole += piece
            time.sleep(0.002)
        return whole.decode()

    def compare(self, seed: int, text: str) -> None:
        """Every answer to one seed is the same."""
        if text != self.right.setdefault(seed, text):
            self.wrong.append(f"seed {seed}: {text!r} instead of {self.right[seed]!r}")

    def client(self, number: int) -> None:
        """Asks until the end."""
        manner = ("plain", "stream", "slow", "rude")[number % 4]
        while not self.terminated.is_set():
            self.ask(random.randrange(SEEDS), manner)

    def watch(self) -> None:
        """/health, all the time."""
        while not self.terminated.is_set():
            begun = time.monotonic()
            connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
            connection.request("GET", "/health")
            connection.getresponse().read()
            connection.close()
            self.slowest_health = max(self.slowest_health, time.monotonic() - begun)
            time.sleep(0.2)


def said(text: str, stream: bool) -> str:
    """The text of an answer."""
    if not stream:
        return str(json.loads(text)["choices"][0]["text"])
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events[-1] == "[DONE]", events[-1]
    return "".join(choice["text"] for event in events[:-1] for choice in json.loads(event)["choices"])


def memory(process: int) -> float:
    """Resident MiB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def main() -> int:
    """Runs the load and says what came of it."""
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
    """The whole story."""
    assert server.stdout is not None
    host, port = server.stdout.readline().split("http://")[1].split()[0].split(":")
    load = Load(host, int(port))
    for seed in range(SEEDS):  # each alone, before the crowd comes
        load.ask(seed, "plain")
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
    begun = time.monotonic()
    time.sleep(0.5)
    load.terminated.set()
    for thread in threads:
        thread.join()
    status = server.wait(timeout=60)
    drained = time.monotonic() - begun
    print(f"answers: {dict(load.seen)}; wrong: {len(load.wrong)}; slowest /health {load.slowest_health:.2f} s")
    print(f"memory {early:.0f} -> {late:.0f} MiB; SIGTERM to exit {status} in {drained:.1f} s")
    known = {"200", "429", "503", "hung up", "refused at the end"}
    bad = [*load.wrong[:5], *(name for name in load.seen if name not in known)]
    bad += ["/health took too long"] if load.slowest_health > 1 else []
    bad += ["memory grew"] if late > early * 1.2 + 20 else []
    bad += [] if together > SEEDS else [f"only {together} answers: too few to mean anything"]
    bad += [f"exit status {status}"] if status else []
    print("\n".join(["FAILED:", *bad]) if bad else "ok")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
