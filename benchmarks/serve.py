"""Compare the throughput of continuous batching with static batches and with one request at a time.

    python benchmarks/serve.py [--repeats 5] [--requests 640] [--clients 32,64]

A random 3+3-layer Transformer (width 256, hidden 1024, 4 heads, 8,000 words) answers completions of 4 to 120 tokens
over HTTP. Three servers differ only in how rows enter the batch:

    continuous   rows join and leave between steps, at most `clients` of them
    static       a batch is filled, and runs until its last row is finished
    one          batches of one row

Clients send the next request as soon as they receive a response, over persistent connections; they use the same cores.
The servers alternate in every repeat, so that load on the machine affects all of them. Ratios are computed per repeat;
their median and range are printed. Static batches are measured with several numbers of clients and compared at the
latency of continuous batching: the throughput is interpolated between the two nearest mean latencies. Before anything
is timed, all servers must return the same texts.
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
from allyouneed.serve.decode_worker import DecodeWorker
from allyouneed.serve.server import serve
from allyouneed.serve.setup import Setup, Source
from allyouneed.serve.worker import PendingRequest
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.text.specials import EOS
from allyouneed.text.tokenizer import of_symbols
from allyouneed.training import Recipe

MODES = ("continuous", "static", "one")
WORDS = 8000 - 4
SHARES = (1, 2, 4, 8)  # divisors of the number of clients for static batches


def make_folder(path: Path) -> Path:
    """Save a model that practically never generates EOS, so that the request determines the length of the response."""
    torch.manual_seed(1)
    model = {"type": "encoder-decoder", "width": 256, "hidden": 1024, "encoder_layers": 3, "decoder_layers": 3}
    tree = {"task": {"type": "numbers"}, "model": {**model, "mixer": {"type": "softmax", "heads": 4}, "tied": False}}
    recipe = parse(Recipe, tree)
    words = of_symbols([f"w{number}" for number in range(WORDS)], "words")
    built = recipe.model.build(Sizes(words.size, words.size))
    with torch.no_grad():
        built.head.weight_VD[EOS] = 0  # as likely as any other of thousands of words
    return save_folder(path / "model", built, Codec(words, words), recipe, "")


def run_server(mode: str, folder: str, batch: int) -> None:
    """Run one of the servers until it receives a signal."""
    keep_freed_memory()
    if mode == "static":
        admitted = DecodeWorker._admitted

        def admitted_to_empty(self: DecodeWorker) -> list[tuple[PendingRequest, Row]]:
            return [] if self.owner else admitted(self)

        DecodeWorker._admitted = admitted_to_empty  # type: ignore[method-assign]
    settings = {"port": 0, "batch": 1 if mode == "one" else batch, "queue": 1024, "deadline": 600, "access_log": "none"}
    serve(parse(Setup, {**settings, "models": {"model": str(folder)}}), Source())


@dataclass(frozen=True)
class Prompt:
    """A prompt and the length of its completion."""

    text: str
    tokens: int
    seed: int


def random_prompts(count: int, seed: int) -> list[Prompt]:
    """Return prompts with mostly short and some long completions."""
    draw = random.Random(seed)
    prompts = []
    for number in range(count):
        text = " ".join(f"w{draw.randrange(WORDS)}" for _ in range(draw.randint(4, 30)))
        prompts.append(Prompt(text, min(120, 4 + int(draw.expovariate(1 / 30))), number))
    return prompts


class Server:
    """A server process."""

    def __init__(self, mode: str, folder: Path, batch: int) -> None:
        command = [sys.executable, __file__, "--serve", mode, "--folder", str(folder), "--clients", str(batch)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.host, port = self.process.stdout.readline().split("http://")[1].split()[0].split(":")
        self.port = int(port)

    def connect(self) -> http.client.HTTPConnection:
        """Open a persistent connection, as OpenAI's client does."""
        return http.client.HTTPConnection(self.host, self.port, timeout=600)

    def complete(self, prompt: Prompt, connection: http.client.HTTPConnection) -> str:
        """Return the completion of a prompt."""
        body = {"model": "model", "prompt": prompt.text, "max_tokens": prompt.tokens}
        body |= {"temperature": 0.5, "seed": prompt.seed}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        found = json.loads(connection.getresponse().read())
        return str(found["choices"][0]["text"])

    def load(self, prompts: Sequence[Prompt], clients: int) -> tuple[float, float]:
        """Return responses per second and seconds per response for `clients` concurrent clients.

        Measured from the first response to the last request: all clients wait all the time, so the mean latency is
        clients / rate (Little 1961).
        """
        left, done, lock = list(reversed(prompts)), list[tuple[float, float]](), threading.Lock()

        def client() -> None:
            connection = self.connect()
            while True:
                with lock:
                    if not left:
                        break
                    prompt, started = left.pop(), time.perf_counter()
                self.complete(prompt, connection)
                done.append((time.perf_counter(), started))
            connection.close()

        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == len(prompts), "a client failed"
        first, last = min(done)[0], max(started for _, started in done)
        rate = sum(first < end <= last for end, _ in done) / (last - first)
        return rate, clients / rate

    def close(self) -> None:
        """Stop the server."""
        self.process.terminate()
        self.process.wait()


def at_latency(points: Sequence[tuple[float, float]], wanted: float) -> float:
    """Interpolate the throughput at a latency between measured (throughput, latency) points, without extrapolation."""
    ordered = sorted(points, key=lambda point: point[1])
    for (low, fast), (high, slow) in pairwise(ordered):
        if fast <= wanted <= slow:
            return low + (high - low) * (wanted - fast) / (slow - fast)
    return ordered[0][0] if wanted < ordered[0][1] else ordered[-1][0]


def spread(values: Sequence[float]) -> str:
    """Format median and range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def compare(servers: dict[str, Server], repeats: int, requests: int, clients: int) -> None:
    """Check that all servers agree, measure them and print the results."""
    for prompt in random_prompts(6, seed=0):
        texts = {}
        for mode, server in servers.items():
            with closing(server.connect()) as connection:
                texts[mode] = server.complete(prompt, connection)
        assert len(set(texts.values())) == 1, texts
    over_one, over_static = [], []
    for repeat in range(repeats):
        prompts = random_prompts(requests, seed=1 + repeat)
        rate, latency = servers["continuous"].load(prompts, clients)
        one, one_latency = servers["one"].load(prompts[: clients + requests // 3], clients)
        static = [servers["static"].load(prompts, max(1, clients // share)) for share in SHARES]
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
    """Start the servers and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=640, help="requests per round (default: %(default)s)")
    parser.add_argument("--clients", default="32,64", help="numbers of concurrent clients (default: %(default)s)")
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
                raise SystemExit(
                    f"{clients} clients need at least {3 * clients} requests (--requests) for a steady load"
                )
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
