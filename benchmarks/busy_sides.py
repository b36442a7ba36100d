"""The kinds of work of busy.py, each in its own process: how long it takes, in wall-clock and in CPU time.

    python benchmarks/busy_sides.py NAME     reads a line for each repetition, writes [seconds, CPU seconds]

How OpenMP's threads wait is inherited from the environment of busy.py, which has imported allyouneed.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from allyouneed.decode import SampleConfig, SearchConfig, sample, search, stream
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.malloc import keep_freed_memory
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models import Model
from allyouneed.models.base import Head
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.positions import RotaryConfig
from allyouneed.sizes import Sizes
from allyouneed.text.specials import EOS
from allyouneed.training import load_recipe
from allyouneed.training.evaluate import held_out_loss
from allyouneed.training.loop import Run
from allyouneed.training.process_group import ProcessGroup
from allyouneed.training.progress import SilentListener

CORES, PAIRS = 2, 1014
Work = Callable[[], object]


def new_run(*sets: str) -> Run:
    """Return a run of the demo recipe in a temporary folder."""
    recipe = load_recipe("numbers-en-de", None, [*sets, "train.log_every=1000000"])
    folder = Path(tempfile.mkdtemp())
    return Run(recipe, folder, SilentListener(), torch.device("cpu"), CORES, ProcessGroup(recipe.train.parallel))


def train(*sets: str) -> Work:
    """Return ten steps of training."""
    run = new_run(*sets)

    def work() -> None:
        for _ in range(10):
            run.step()

    return work


def evaluate() -> Work:
    """Return an evaluation in the middle of a run: the loss of a translator of the size of multi30k-en-de."""
    run = new_run(f"task.valid={PAIRS}", "model.width=128", "model.encoder_layers=4", "model.decoder_layers=4")

    def work() -> object:
        with run.workers.at_rest():
            return held_out_loss(run.model, run.data, "valid")

    return work


def endless(model: Model) -> Model:
    """Return the model optimized for inference; it never generates EOS."""
    model.head = Head(model.head.weight_VD, bias=True)
    assert model.head.bias_V is not None
    with torch.no_grad():
        model.head.bias_V[EOS] = -1e4
    optimize_for_inference(model)
    return model


def translate(rows: int) -> Work:
    """Return greedy searches of a translator of 3+3 layers: 30 sentences of one, or two batches of 32."""
    mixer = SoftmaxConfig(heads=4)
    config = EncoderDecoderConfig(width=256, hidden=1024, mixer=mixer, encoder_layers=3, decoder_layers=3)
    model = endless(config.build(Sizes(8000, 8000, shared=True)))
    greedy, sources = SearchConfig(beam=1, max_length=30), [[5 + place % 50 for place in range(16)]] * rows
    return lambda: [search(model, sources, greedy) for _ in range(30 if rows == 1 else 6)]


def generate(rows: int) -> Work:
    """Return greedy decoding with a language model of 135 M parameters (the shape of SmolLM-135M)."""
    config = DecoderConfig(
        width=576,
        layers=30,
        hidden=1536,
        feedforward="swiglu",
        feedforward_bias=False,
        norm="pre",
        normalisation="rms",
        positions=RotaryConfig(),
        mixer=SoftmaxConfig(heads=9, key_heads=3, bias=False),
        dropout=0.0,
        embedding_scale=False,
    )
    model, prompt = endless(config.build(Sizes(49152, 49152))), [7, 8, 9, 10]
    if rows == 1:
        return lambda: list(stream(model, prompt, SampleConfig(temperature=0, max_length=24)))
    return lambda: sample(model, [prompt] * rows, SampleConfig(temperature=0, max_length=8))


WORK: dict[str, Callable[[], Work]] = {
    "training (demo recipe)": train,
    "training, one worker, two OpenMP threads": partial(train, "train.workers=1"),
    f"evaluation, {PAIRS:,} pairs": evaluate,
    "translating, batch 1": partial(translate, 1),
    "translating, batch 32": partial(translate, 32),
    "generating, 135 M parameters, batch 1": partial(generate, 1),
    "generating, 135 M parameters, batch 32": partial(generate, 32),
}


def main() -> None:
    """Serve repetitions of one kind of work."""
    keep_freed_memory()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        work = WORK[sys.argv[1]]()
        work()
        print("ready", flush=True)
        for _ in sys.stdin:
            cpu, wall = time.process_time(), time.perf_counter()
            work()
            print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)


if __name__ == "__main__":
    main()
