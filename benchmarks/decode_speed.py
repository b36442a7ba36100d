"""Decoding against Hugging Face `generate`, with the same weights and the same outputs.

    python benchmarks/decode_speed.py [--repeats 5] [--threads 1]

A random 3+3-layer Transformer (width 256, hidden 1024, 4 heads, tied 8,000-token vocabulary, post-norm, ReLU) is copied
into MarianMTModel. Before anything is timed, both must say the same:

- fixed length: EOS has a bias that never lets it win, so both take every step (what is timed);
- natural ends: EOS competes, without length penalty, where both searches are defined alike.

Then both are timed in turn, so that a busy machine slows both. CPU time of the process counts; wall time is shown.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
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


def timed(decode: Callable[..., Any], model: Any, sources: list[list[int]], beam: int, again: int) -> Seconds:
    """CPU and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(again):
        decode(model, sources, beam)
    return time.process_time() - cpu, time.perf_counter() - wall


def check_same(ours: EncoderDecoder, theirs: MarianMTModel, beam: int, batch: int, what: str) -> None:
    sources = some_sources(batch)
    for number, (one, two) in enumerate(
        zip(decode_ours(ours, sources, beam), decode_theirs(theirs, sources, beam), strict=True)
    ):
        if one != two:
            raise SystemExit(f"{what}, beam {beam}, batch {batch}, sentence {number}:\nours   {one}\ntheirs {two}")


def set_end_bias(ours: EncoderDecoder, theirs: MarianMTModel, value: float) -> None:
    with torch.no_grad():
        for bias_V in (ours.head.bias_V, theirs.final_logits_bias[0]):
            bias_V[[PAD, BOS]] = NEVER  # the peer would say them
            bias_V[EOS] = value


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--threads", type=int, default=1)
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    ours = our_model()
    theirs = marian(ours).eval()
    keep_freed_memory()  # for both: they share this process
    lay_out_for_prediction(ours)  # what `allyouneed translate` does with a model, too
    cases = [(1, 1), (1, 32), (5, 1), (5, 32)]
    for bias in (0.0, 6.0, 12.0):
        set_end_bias(ours, theirs, bias)
        for beam, batch in cases:
            check_same(ours, theirs, beam, batch, f"natural ends, bias {bias}")
    set_end_bias(ours, theirs, NEVER)
    for beam, batch in cases:
        check_same(ours, theirs, beam, batch, "fixed length")
        again = 16 if batch == 1 else 1
        work = (some_sources(batch), beam, again)
        runs = [(timed(decode_ours, ours, *work), timed(decode_theirs, theirs, *work)) for _ in range(options.repeats)]
        report(f"beam {beam} batch {batch:2}", again * batch * LONGEST, runs)


def report(case: str, tokens: int, runs: list[tuple[Seconds, Seconds]]) -> None:
    ratios = sorted(theirs[0] / ours[0] for ours, theirs in runs)
    walls = sorted(theirs[1] / ours[1] for ours, theirs in runs)
    our_speed, their_speed = (tokens / statistics.median(run[side][0] for run in runs) for side in (0, 1))
    print(
        f"{case}: ours {our_speed:7,.0f}  generate {their_speed:7,.0f} tokens per CPU-second; "
        f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}), "
        f"wall {statistics.median(walls):.2f} ({walls[0]:.2f}-{walls[-1]:.2f}), n={len(runs)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
