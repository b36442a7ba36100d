"""Throughput of a server: continuous batching against one request at a time, and against static batches.

    python benchmarks/serve.py [--repeats 5] [--requests 640] [--clients 32,64]

A random 3+3-layer Transformer (width 256, hidden 1024, 4 heads, 8,000 words) answers completions of 4 to 120 tokens
over HTTP. Three servers, the same but for how rows get into the batch:

    continuous   rows join and leave between steps, at most `clients` side by side
    static       a batch is filled, and runs until its last row is done
    one          one row at a time

Clients ask again as soon as they are answered, over connections that stay open; they take some of the same cores.
Servers take turns in every repeat, so that a busy machine slows all; ratios are those of one repeat, their median and
range are printed. One at a time is faster the fewer clients wait, but not in throughput; static batches are measured
with several numbers of clients, and compared at the latency that continuous batching has: the throughput is
interpolated between those whose mean latencies lie around it.
All servers must say the same before anything is timed.
"""

import argparse
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from allyouneed.config import parse
from allyouneed.decode.running_batch import Row
from allyouneed.folder import save_folder
from allyouneed.malloc import keep_freed_memory
from allyouneed.serve import ServeConfig, open_models
from allyouneed.serve.decode_worker import DecodeWorker
from allyouneed.serve.server import serve
from allyouneed.serve.worker import PendingRequest
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.text.specials import EOS
from allyouneed.text.tokenizer import of_symbols
from allyouneed.training import Recipe

MODES = ("continuous", "static", "one")
WORDS = 8000 - 4
SHARES = (1, 2, 4, 8)  # static batches are tried with this part of the clients


def make_folder(path: Path) -> Path:
    """The model; it never says EOS, so a request says how long its answer is."""
    torch.manual_seed(1)
    model = {"type": "encoder-decoder", "width": 256, "hidden": 1024, "encoder_layers": 3, "decoder_layers": 3}
    tree = {"task": {"type": "numbers"}, "model": {**model, "mixer": {"type": "softmax", "heads": 4}, "tied": False}}
    recipe = parse(Recipe, tree)
    words = of_symbols([f"w{number}" for number in range(WORDS)], "words")
    built = recipe.model.build(Sizes(words.size, words.size))
    with torch.no_grad():
        built.head.weight_VD[EOS] = 0  # as likely as any other word, among thousands
    return save_folder(path / "model", built, Codec(words, words), recipe, "")


def run_server(mode: str, folder: str, batch: int) -> None:
    """One of the servers, until a signal comes."""
    keep_freed_memory()
    if mode == "static":
        admitted = DecodeWorker._admitted

        def admitted_to_empty(self: DecodeWorker) -> list[tuple[PendingRequest, Row]]:
            return [] if self.owner else admitted(self)

        DecodeWorker._admitted = admitted_to_empty  # type: ignore[method-assign]
    config = ServeConfig(port=0, batch=1 if mode == "one" else batch, queue=1024, deadline=600)
    serve(config, open_models([f"model={folder}"]))


@dataclass(frozen=True)
class Ask:
    """A question and how long its answer is to be."""

    text: str
    tokens: int
    seed: int


def questions(count: int, seed: int) -> list[Ask]:
    """Short and long ones, mostly short, as people ask."""
    draw = random.Random(seed)
    asks = []
    for number in range(count):
        text = " ".join(f"w{draw.randrange(WORDS)}" for _ in range(draw.randint(4, 30)))
        asks.append(Ask(text, min(120, 4 + int(draw.expovariate(1 / 30))), number))
    return asks


class Server:
    """A server process."""

    def __init__(self, mode: str, folder: Path, batch: int) -> None:
        command = [sys.executable, __file__, "--serve", mode, "--folder", str(folder), "--clients", str(batch)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.host, port = self.process.stdout.readline().split("http://")[1].split()[0].split(":")
        self.port = int(port)

    def connect(self) -> http.client.HTTPConnection:
        """What a client asks through, again and again, as OpenAI's does."""
        return http.client.HTTPConnection(self.host, self.port, timeout=600)

    def answer(self, ask: Ask, through: http.client.HTTPConnection) -> str:
        """What it says."""
        body = {"model": "model", "prompt": ask.text, "max_tokens": ask.tokens, "temperature": 0.5, "seed": ask.seed}
        through.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        found = json.loads(through.getresponse().read())
        return str(found["choices"][0]["text"])

    def load(self, asks: Sequence[Ask], clients: int) -> tuple[float, float]:
        """Answers a second, and seconds until an answer, when so many clients ask one after another.

        From the first answer until the last question is asked: all clients wait for something all the time, so they
        wait for clients / rate seconds (Little 1961).
        """
        left, done, lock = list(reversed(asks)), list[tuple[float, float]](), threading.Lock()

        def client() -> None:
            connection = self.connect()
            while True:
                with lock:
                    if not left:
                        break
                    ask, begun = left.pop(), time.perf_counter()
                self.answer(ask, connection)
                done.append((time.perf_counter(), begun))
            connection.close()

        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == len(asks), "a client failed"
        first, last = min(done)[0], max(begun for _, begun in done)
        rate = sum(first < end <= last for end, _ in done) / (last - first)
        return rate, clients / rate

    def close(self) -> None:
        """Ends it."""
        self.process.terminate()
        self.process.wait()


def at_latency(points: Sequence[tuple[float, float]], wanted: float) -> float:
    """The throughput at a latency, between measured (throughput, latency); beyond them, that of the nearest."""
    ordered = sorted(points, key=lambda point: point[1])
    for (low, fast), (high, slow) in pairwise(ordered):
        if fast <= wanted <= slow:
            return low + (high - low) * (wanted - fast) / (slow - fast)
    return ordered[0][0] if wanted < ordered[0][1] else ordered[-1][0]


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def compare(servers: dict[str, Server], repeats: int, requests: int, clients: int) -> None:
    """Checks, measures, prints."""
    for ask in questions(6, seed=0):
        said = {}
        for mode, server in servers.items():
            with closing(server.connect()) as connection:
                said[mode] = server.answer(ask, connection)
        assert len(set(said.values())) == 1, said
    over_one, over_static = [], []
    for repeat in range(repeats):
        asks = questions(requests, seed=1 + repeat)
        rate, latency = servers["continuous"].load(asks, clients)
        one, one_latency = servers["one"].load(asks[: clients + requests // 3], clients)
        static = [servers["static"].load(asks, max(1, clients // share)) for share in SHARES]
        over_one.append(rate / one)
        over_static.append(rate / at_latency(static, latency))
        shown = ", ".join(f"{value:.1f}/s at {seconds:.2f} s" for value, seconds in static)
        print(f"continuous {rate:.1f}/s at {latency:.2f} s; one {one:.1f}/s at {one_latency:.2f} s; static {shown}")
    how = (
        f"clients:{clients}|requests:{requests}|threads:{torch.get_num_threads()}|torch:{torch.__version__}|n:{repeats}"
    )
    print(f"continuous / one at a time|{how} = {spread(over_one)}")
    print(f"continuous / static at the same latency|{how} = {spread(over_static)}")


def main() -> None:
    """Parses, starts the servers, compares them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--requests", type=int, default=640)
    parser.add_argument("--clients", default="32,64", help="how many ask at a time; each number is tried")
    parser.add_argument("--serve", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        run_server(options.serve, options.folder, int(options.clients))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = make_folder(Path(temporary))
        for clients in map(int, options.clients.split(",")):
            if options.requests < 3 * clients:
                raise SystemExit(f"{clients} clients need at least {3 * clients} requests to be busy for a while")
            servers: dict[str, Server] = {}
            try:
                for mode in MODES:
                    servers[mode] = Server(mode, folder, clients)
                compare(servers, options.repeats, options.requests, clients)
            finally:
                for server in servers.values():
                    server.close()


if __name__ == "__main__":
    main()
