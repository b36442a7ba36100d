"""Serve 200 polite clients, alone and beside clients without manners, and send SIGTERM under load.

    python tests/faults/serve_load.py [--clients 200] [--seconds 60] [--busy]

First the polite clients are alone, for a third of the time. Some read slowly, some hang up. Then the same clients run
beside unread streams, slow readers, hostile bodies, idle connections and a greedy client (`rude_clients.py`). Required:

    every response of a polite client is 200, 429 or 503, and every 200 has the right text for its seed
    the polite clients get at least half as many responses per second as alone
    /health takes less than 0.5 s at the 99.9th percentile; with --busy, beside a busy loop on one core, 1.5 s
    memory stays flat, and every refusal of a hostile body has at most 4 KiB
    after SIGTERM the server drains and exits with 0

Prints the numbers, and exits with 1 if any of this is violated. Not part of `make test`: it needs the whole machine.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from serve_folders import language_model, translator

from allyouneed.decode import SampleConfig, sample
from allyouneed.decode.base import FIRST_TOKEN
from allyouneed.decode.sample import cut_probabilities, uniforms
from allyouneed.folder import Bundle, load_folder
from allyouneed.text.specials import BOS, EOS

SEEDS = 40  # different requests
TEMPERATURE = 0.9
# A sampled token depends on the rounding of sums, so on its batch, if its uniform number is next to a boundary between
# two tokens. Rounding moves boundaries by 1e-8 to 1e-7.
MARGIN = 1e-5
HEALTH_SECONDS = {False: 0.5, True: 1.5}  # at the 99.9th percentile; True: beside a busy loop
BESIDE = Path(__file__).with_name("rude_clients.py")


class Load:
    """All clients and their observations."""

    def __init__(self, host: str, port: int, seeds: Sequence[int]) -> None:
        self.host, self.port, self.seeds = host, port, seeds
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.right: dict[int, str] = {}
        self.ending, self.terminated = threading.Event(), threading.Event()

    def body(self, seed: int, stream: bool) -> dict[str, Any]:
        """Return a request whose response depends only on its seed."""
        request = {"model": "language", "prompt": prompt_of(seed), "max_tokens": tokens_of(seed), "seed": seed}
        return {**request, "temperature": TEMPERATURE, "stream": stream}

    def send(self, seed: int, manner: str, address: str = "127.0.0.1") -> None:
        """Send one request: plain, streamed, read slowly, or disconnected early ("leaving")."""
        stream = manner != "plain"
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120, source_address=(address, 0))
        try:
            content = json.dumps(self.body(seed, stream))
            connection.request("POST", "/v1/completions", content, {"Content-Type": "application/json"})
            if manner == "leaving":
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
            name = "refused at the end" if self.ending.is_set() else f"broken: {error!r}"
            self.seen[name] += 1
            time.sleep(0.1)
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
        manner = ("plain", "stream", "slow", "leaving")[number % 4]
        while not self.terminated.is_set():
            self.send(random.choice(self.seeds), manner, f"127.0.{1 + number // 200}.{1 + number % 200}")

    def rate(self, seconds: float) -> float:
        """Return the right responses per second during some seconds from now."""
        before, started = self.seen["200"], time.monotonic()
        time.sleep(seconds)
        return (self.seen["200"] - before) / (time.monotonic() - started)


def prompt_of(seed: int) -> str:
    """Return the prompt of a request."""
    return "to be or not " * (1 + seed % 4)


def tokens_of(seed: int) -> int:
    """Return the maximum number of tokens of a request."""
    return 10 + 5 * (seed % 20)


def decisive_seeds(folder: Path) -> list[int]:
    """Return seeds whose tokens do not depend on rounding, one for each prompt and length."""
    bundle = load_folder(folder)
    return [next(seed for seed in count(number, SEEDS) if margin_of(bundle, seed) > MARGIN) for number in range(SEEDS)]


def margin_of(bundle: Bundle, seed: int) -> float:
    """Return the least distance of a uniform number to a boundary between two tokens."""
    config = SampleConfig(temperature=TEMPERATURE, seed=seed, max_length=tokens_of(seed))
    tokenizer, model = bundle.codec.target, bundle.model
    assert tokenizer is not None
    prompt = tokenizer.encode(prompt_of(seed))
    [[found]] = sample(model, [prompt], config)
    ids = [*found.ids, EOS] if found.finished else found.ids
    with torch.inference_mode():
        x_1TD, _ = model.hidden(torch.tensor([[BOS, *prompt, *ids[:-1]]]), model.start())
        logits_TV = model.head(x_1TD[0, len(prompt) :]).double()
    weight_TN, _ = cut_probabilities(logits_TV[:, FIRST_TOKEN:], config)
    uniform_T = torch.from_numpy(uniforms(seed, 0, 0).random(len(ids)))
    return float((weight_TN.cumsum(dim=1) - uniform_T[:, None]).abs().min())


class Beside:
    """A process of `rude_clients.py`."""

    def __init__(self, role: str, load: Load) -> None:
        command = [sys.executable, str(BESIDE), role, load.host, str(load.port)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end(self) -> Any:
        """Stop it and return what it has printed."""
        found, _ = self.process.communicate()
        return json.loads(found)


@contextmanager
def busy_loop(wanted: bool) -> Iterator[None]:
    """Run a busy loop on one core, if it is wanted."""
    if not wanted:
        yield
        return
    code = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            yield
        finally:
            process.kill()


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
    parser.add_argument("--busy", action="store_true", help="run a busy loop on one core")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folders = [language_model(Path(temporary)), translator(Path(temporary), "numbers")]
        command = [sys.executable, "-m", "allyouneed", "serve", *map(str, folders), "--port", "0"]
        command += ["--access-log", "none", "--log-level", "warning"]
        with busy_loop(options.busy), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                return run(server, decisive_seeds(folders[0]), options.clients, options.seconds, options.busy)
            finally:
                server.kill()


def run(server: "subprocess.Popen[str]", seeds: Sequence[int], clients: int, seconds: float, busy: bool) -> int:
    """Run all clients against a server, terminate it, and print the verdict."""
    assert server.stdout is not None
    host, port = server.stdout.readline().split("http://")[1].split()[0].split(":")
    load = Load(host, int(port), seeds)
    for seed in seeds:  # each alone, as the reference
        load.send(seed, "plain")
    threads = [threading.Thread(target=load.client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(seconds * 0.05)
    quiet = Beside("watch", load)
    alone = load.rate(seconds / 3)
    health_alone = quiet.end()
    rude, watch = Beside("rude", load), Beside("watch", load)
    time.sleep(seconds * 0.1)
    first = load.rate(seconds * 0.3)
    early = memory(server.pid)
    second = load.rate(seconds * 0.6)
    late = memory(server.pid)
    health, manners = watch.end(), rude.end()
    load.ending.set()
    server.send_signal(signal.SIGTERM)
    started = time.monotonic()
    time.sleep(0.5)
    load.terminated.set()
    for thread in threads:
        thread.join()
    status = server.wait(timeout=60)
    drained = time.monotonic() - started
    beside = (first + 2 * second) / 3
    print(f"polite clients: {dict(load.seen)}; wrong: {len(load.wrong)}")
    print(f"rude clients: {manners}")
    print(f"responses per second: {alone:.1f} alone, {beside:.1f} beside the rude ones ({beside / alone:.2f})")
    print(f"/health alone: {percentiles(health_alone)}; beside: {percentiles(health)}")
    print(f"memory {early:.0f} -> {late:.0f} MiB; SIGTERM to exit {status} in {drained:.1f} s")
    known = {"200", "429", "503", "hung up", "refused at the end"}
    bad = [*load.wrong[:5], *(name for name in load.seen if name not in known)]
    bad += [name for name in manners if name.startswith("WRONG")]
    bad += [f"/health took too long: {at(health, 0.999):.2f} s"] if at(health, 0.999) > HEALTH_SECONDS[busy] else []
    bad += ["memory grew"] if late > early * 1.2 + 20 else []
    bad += ["the polite clients lost more than half of their throughput"] if beside < alone / 2 else []
    bad += [] if (first + second) * seconds > SEEDS else ["too few responses to be conclusive"]
    bad += [f"exit status {status}"] if status else []
    print("\n".join(["FAILED:", *bad]) if bad else "ok")
    return 1 if bad else 0


def at(values: Sequence[float], share: float) -> float:
    """Return a quantile."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def percentiles(values: Sequence[float]) -> str:
    """Format the distribution of some seconds."""
    return (
        f"median {median(values):.3f}, 99 % {at(values, 0.99):.2f}, 99.9 % {at(values, 0.999):.2f} s (n {len(values)})"
    )


if __name__ == "__main__":
    sys.exit(main())
