"""Restart two servers behind nginx, one after the other, under load: no request may fail.

    python tests/faults/rolling_restart.py --requests 5000 --restarts 3

Clients send completions, streams and translations through nginx (`deploy/nginx.conf`) without a pause. Meanwhile each
server is stopped with SIGTERM and started again, several times. Every response must be complete and right. Prints the
counts, and exits with 1 if a request failed, with 77 if nginx is not installed. A short version is in
`tests/serve/test_nginx.py`.
"""

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from nginx_proxy import MISSING, NGINX, RestartableServer, two_servers_behind_nginx
from serve_folders import language_model, translator

SEEDS = 20  # different requests of each kind


class Load:
    """Clients that send requests until they are stopped, and what became of the requests."""

    def __init__(self, url: str) -> None:
        split = urlsplit(url)
        assert split.hostname is not None
        self.host, self.port = split.hostname, split.port
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []
        self.stopped = threading.Event()
        self._expected: dict[tuple[str, int], str] = {}
        self._lock = threading.Lock()

    def client(self, number: int) -> None:
        """Send requests over one connection, until the load is stopped."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        turn = number
        while not self.stopped.is_set():
            kind, seed, turn = ("completion", "stream", "translation")[turn % 3], turn % SEEDS, turn + 1
            try:
                problem = self._send(connection, kind, seed)
            except (OSError, http.client.HTTPException) as error:
                problem = repr(error)
                connection.close()
            with self._lock:
                self.counts[kind] += 1
                if problem is not None:
                    self.failed.append(f"{time.strftime('%X')} {kind}: {problem}")
        connection.close()

    def _send(self, connection: http.client.HTTPConnection, kind: str, seed: int) -> str | None:
        """Send one request, and return what is wrong with its response."""
        path, body = _request(kind, seed)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            return f"status {response.status}: {text[:200]}"
        found = _text_of(kind, text)
        with self._lock:
            expected = self._expected.setdefault((kind, seed), found)
        return None if found == expected else f"{found!r} instead of {expected!r}"


def _request(kind: str, seed: int) -> tuple[str, dict[str, Any]]:
    if kind == "translation":
        return "/translate", {"q": f"number {'abcdefghij'[: seed % 10]}", "source": "en", "target": "de"}
    body = {"model": "language", "prompt": "to be or not", "seed": seed, "max_tokens": 4 + seed, "temperature": 0.9}
    return "/v1/completions", {**body, "stream": kind == "stream"}


def _text_of(kind: str, text: str) -> str:
    if kind == "translation":
        return str(json.loads(text)["translatedText"])
    if kind == "completion":
        return str(json.loads(text)["choices"][0]["text"])
    *events, last = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    if last != "[DONE]":
        return f"a stream without end: {text[-200:]}"
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


def roll(url: str, servers: list[RestartableServer], requests: int, restarts: int, clients: int = 12) -> Load:
    """Restart each server this many times under load, and go on until enough requests were sent."""
    load = Load(url)
    threads = [threading.Thread(target=load.client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        for round_ in range(restarts):
            for server in servers:
                status = server.restart()
                print(f"round {round_ + 1}: port {server.port} restarted after {sum(load.counts.values())} requests")
                if status:
                    load.failed.append(f"exit status {status} of a server")
        while sum(load.counts.values()) < requests:
            time.sleep(0.1)
    finally:
        load.stopped.set()
        for thread in threads:
            thread.join()
    return load


def main() -> int:
    """Run the load, print the counts, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=5000, help="at least")
    parser.add_argument("--restarts", type=int, default=3, help="of each server")
    options = parser.parse_args()
    if NGINX is None:
        print(MISSING)
        return 77
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folders = [language_model(folder), translator(folder, "numbers")]
        with two_servers_behind_nginx(folder, [str(one) for one in folders]) as (url, servers, log):
            load = roll(url, servers, options.requests, options.restarts)
        served = log.read_text().count('"status": 200')
    print(f"{sum(load.counts.values())} requests: {dict(load.counts)}; {2 * options.restarts} restarts")
    print(f"{len(load.failed)} failed; the servers logged {served} responses with status 200")
    print("\n".join(load.failed[:10]) if load.failed else "ok")
    return 1 if load.failed else 0


if __name__ == "__main__":
    sys.exit(main())
