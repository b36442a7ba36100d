"""Decoding against Hugging Face `generate`, with the same weights and the same outputs.

    python benchmarks/decode_speed.py [--repeats 5] [--threads 1]

A random 3+3-layer Transformer (width 256, hidden 1024, 4 heads, tied 8,000-token vocabulary, post-norm, ReLU) is copied
into MarianMTModel. Before anything is timed, both must say the same:

- fixed length: EOS has a bias that never lets it win, so both take every step (what is timed);
- natural ends: EOS competes, without length penalty, where both searches are defined alike.

Each side is a process of its own; they take turns, so that a busy machine slows all. The peer runs twice: as its users
run it, and with our allocator setting (`+malloc`), which `allyouneed translate` makes for itself. CPU time counts; wall
time is shown.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from functools import cache
from typing import Any

import torch
from peers import marian
from transformers import GenerationConfig, MarianMTModel

from allyouneed.decode import SearchConfig, search
from allyouneed.malloc import keep_freed_memory
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.base import Head
from allyouneed.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from allyouneed.models.layout import lay_out_for_prediction
from allyouneed.sizes import Sizes
from allyouneed.tasks.base import BOS, EOS, PAD

VOCABULARY, WIDTH, HIDDEN, HEADS, LAYERS = 8000, 256, 1024, 4, 3
LONGEST = 24
Seconds = tuple[float, float]  # of the processor, and on the wall
NEVER = -1e4


def our_model() -> EncoderDecoder:
    config = EncoderDecoderConfig(
        width=WIDTH, hidden=HIDDEN, mixer=SoftmaxConfig(heads=HEADS), encoder_layers=LAYERS, decoder_layers=LAYERS
    )
    model = config.build(Sizes(VOCABULARY, VOCABULARY, shared=True))
    model.head = Head(model.head.weight_VD, bias=True)
    return model.eval()


def decode_ours(model: EncoderDecoder, sources: list[list[int]], beam: int) -> list[list[int]]:
    config = SearchConfig(beam=beam, length_penalty=0, max_length=LONGEST, batch_tokens=10**6)
    return [found[0].ids for found in search(model, sources, config)]


def decode_theirs(model: MarianMTModel, sources: list[list[int]], beam: int) -> list[list[int]]:
    longest = max(len(source) for source in sources)
    ids_BS = torch.tensor([source + [PAD] * (longest - len(source)) for source in sources])
    settings = GenerationConfig(
        num_beams=beam,
        max_new_tokens=LONGEST,
        length_penalty=0.0,
        early_stopping=False if beam == 1 else "never",
        do_sample=False,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
    )
    with torch.inference_mode():
        out = model.generate(ids_BS, attention_mask=(ids_BS != PAD).long(), generation_config=settings)
    rows = [row[1:] for row in out.tolist()]
    return [row[: row.index(EOS)] if EOS in row else [token for token in row if token != PAD] for row in rows]


def some_sources(count: int, seed: int = 0) -> list[list[int]]:
    numbers = random.Random(seed)
    return [[numbers.randrange(4, VOCABULARY) for _ in range(numbers.randrange(8, 24))] + [EOS] for _ in range(count)]


class Side:
    """One of the processes: it decodes what it is told to, and says what came out and how long it took."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        command = [sys.executable, __file__, "--side", name, "--threads", str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def decode(self, bias: float, beam: int, batch: int, again: int = 1) -> tuple[list[list[int]], Seconds]:
        """The targets, and the CPU and wall seconds of saying them `again` times."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([bias, beam, batch, again]), file=self.process.stdin, flush=True)
        said, cpu, wall = json.loads(self.process.stdout.readline())
        return said, (cpu, wall)


def serve(name: str) -> None:
    """The life of such a process."""
    if name != "generate":
        keep_freed_memory()
    decode: Any = decode_ours if name == "ours" else decode_theirs
    for line in sys.stdin:
        bias, beam, batch, again = json.loads(line)
        model = ours_and_theirs(bias)[name != "ours"]
        sources = some_sources(batch)
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(again):
            said = decode(model, sources, beam)
        print(json.dumps([said, time.process_time() - cpu, time.perf_counter() - wall]), flush=True)


def check_same(sides: list[Side], bias: float, beam: int, batch: int) -> None:
    first, *others = [(side.name, side.decode(bias, beam, batch)[0]) for side in sides]
    for name, said in others:
        for number, (one, two) in enumerate(zip(first[1], said, strict=True)):
            if one != two:
                raise SystemExit(
                    f"EOS bias {bias}, beam {beam}, batch {batch}, sentence {number}:\n"
                    f"{first[0]:10} {one}\n{name:10} {two}"
                )


@cache
def ours_and_theirs(end_bias: float) -> tuple[EncoderDecoder, MarianMTModel]:
    torch.manual_seed(0)
    ours = our_model()
    bias_V = ours.head.bias_V
    assert bias_V is not None
    with torch.no_grad():
        bias_V[[PAD, BOS]] = NEVER  # the peer would say them
        bias_V[EOS] = end_bias
    theirs = marian(ours).eval()
    theirs.final_logits_bias[0] = bias_V.detach()
    lay_out_for_prediction(ours)  # what `allyouneed translate` does with a model, too
    return ours, theirs


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--side", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    if options.side:
        serve(options.side)
        return
    sides = [Side(name, options.threads) for name in ("ours", "generate", "generate+malloc")]
    cases = [(1, 1), (1, 32), (5, 1), (5, 32)]
    for bias in (0.0, 6.0, 12.0, NEVER):
        for beam, batch in cases:
            check_same(sides, bias, beam, batch)
    for beam, batch in cases:
        again = 16 if batch == 1 else 1
        runs = [[side.decode(NEVER, beam, batch, again)[1] for side in sides] for _ in range(options.repeats)]
        report(f"beam {beam} batch {batch:2}", again * batch * LONGEST, sides, runs)


def report(case: str, tokens: int, sides: list[Side], runs: list[list[Seconds]]) -> None:
    speed = [tokens / statistics.median(run[side][0] for run in runs) for side in range(len(sides))]
    print(f"{case}: ours {speed[0]:7,.0f} tokens per CPU-second", flush=True)
    for number, side in enumerate(sides[1:], start=1):
        ratios, walls = (sorted(run[number][what] / run[0][what] for run in runs) for what in (0, 1))
        print(
            f"    {side.name:16} {speed[number]:7,.0f}; ratio {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f}-{ratios[-1]:.2f}), "
            f"wall {statistics.median(walls):.2f} ({walls[0]:.2f}-{walls[-1]:.2f}), n={len(runs)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
