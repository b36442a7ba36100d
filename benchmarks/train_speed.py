"""Compare training speed with the same model in torch.nn.Transformer's layers and in Hugging Face Marian.

    python benchmarks/train_speed.py [--cores 1 2] [--rounds 5] [--steps 4]

The same initial weights, batches, places of dropout, optimiser (fused Adam), clipping and label smoothing. Each arm is
a process; they alternate, round after round, so that load on the machine affects all of them. The peers run twice: as a
user would write the loop, and with our allocator setting (`+malloc`). The ratio is ours over the fastest peer of a
round. Before anything is timed, losses of the first steps without dropout must agree: a speed-up is never reported for
a different computation.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PEERS = ("torch.nn", "torch.nn+malloc", "marian", "marian+malloc")
ARMS = ("ours", *PEERS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2], help="numbers of cores (default: 1 2)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="optimiser steps of an arm per round (%(default)s)")
    parser.add_argument("--tokens", type=int, default=4096, help="padded tokens per step, on each side (%(default)s)")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        serve(options.arm, options.cores[0], options.tokens, Path(options.data))
        return
    with tempfile.TemporaryDirectory() as folder:
        for cores in options.cores:
            compare(cores, options, folder)


def compare(cores: int, options: argparse.Namespace, folder: str) -> None:
    """Run all arms on this number of cores and print the table."""
    children = {arm: start(arm, cores, options.tokens, folder) for arm in ARMS}
    info = {arm: request(child, {"do": "describe"}) for arm, child in children.items()}
    curves = {arm: request(child, {"do": "curve", "steps": 8})["losses"] for arm, child in children.items()}
    worst = max(abs(a - b) / b for arm in PEERS for a, b in zip(curves["ours"], curves[arm], strict=True))
    print(f"\n== {cores} core(s); {info['ours']['signature']}")
    print(f"parity: losses of 8 steps without dropout agree within {worst:.1e} (relative): {curves['ours'][-1]:.4f}")
    if worst > 1e-3:
        sys.exit("the arms compute different results; nothing is timed")
    speeds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    finals: dict[str, float] = {}
    for number in range(options.rounds + 1):
        for arm, child in children.items():
            answer = request(child, {"do": "run", "steps": options.steps})
            finals[arm] = answer["loss"]
            if number:  # the first round is warm-up
                speeds[arm].append(answer["tokens"] / answer["cpu" if cores == 1 else "wall"])
    unit = "tokens per CPU-second" if cores == 1 else "tokens per second"
    for arm in ARMS:
        print(f"{arm:16} {spread(speeds[arm])} {unit}; loss after the last round {finals[arm]:.3f}")
    ratios = [ours / max(peers) for ours, *peers in zip(*(speeds[arm] for arm in ARMS), strict=True)]
    plain = [ours / max(a, b) for ours, a, b in zip(speeds["ours"], speeds["torch.nn"], speeds["marian"], strict=True)]
    print(f"ours / fastest peer            {spread(ratios, 2)}")
    print(f"ours / fastest peer, no malloc {spread(plain, 2)}")
    for child in children.values():
        assert child.stdin is not None
        child.stdin.close()
        child.wait()


def spread(values: list[float], digits: int = 0) -> str:
    """Format the median and half of the interquartile range."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return f"{statistics.median(values):>8.{digits}f} +- {(high - low) / 2:.{max(digits, 0)}f} (n={len(values)})"


def start(arm: str, cores: int, tokens: int, folder: str) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, "--arm", arm, "--cores", str(cores), "--tokens", str(tokens), "--data", folder]
    environment = {**os.environ, "OMP_NUM_THREADS": str(cores), "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def request(child: "subprocess.Popen[str]", message: dict[str, Any]) -> Any:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps(message) + "\n")
    child.stdin.flush()
    line = child.stdout.readline()
    if not line:
        sys.exit("an arm failed; see its message above")
    return json.loads(line)


def serve(name: str, cores: int, tokens: int, folder: Path) -> None:
    """Run one arm: serve requests from standard input."""
    out, sys.stdout = sys.stdout, sys.stderr  # libraries may print; keep standard output for the answers
    arm = Arm(name, cores, tokens, folder)
    for line in sys.stdin:
        message = json.loads(line)
        if message["do"] == "describe":
            answer: dict[str, Any] = {"signature": arm.signature}
        elif message["do"] == "curve":
            answer = {"losses": arm.curve(message["steps"])}
        else:
            answer = arm.run(message["steps"])
        print(json.dumps(answer), file=out, flush=True)


class Arm:
    """An implementation of the same training."""

    def __init__(self, name: str, cores: int, tokens: int, folder: Path) -> None:
        import torch

        from allyouneed.malloc import keep_freed_memory

        torch.set_num_threads(cores)
        self.name, self.cores = name, cores
        if name == "ours" or name.endswith("+malloc"):
            keep_freed_memory()
        self.data, self.corpus = prepare(folder, tokens)
        self.step_number = 0
        self._build(dropout=0.1)
        self.signature = (
            f"data:{self.corpus}|3+3 layers|d:256|ffn:1024|heads:4|V:{self.data.sizes.target}|"
            f"tokens:{tokens}|dropout:0.1|torch:{torch.__version__}"
        )

    def _build(self, dropout: float) -> None:
        import torch

        sys.path.insert(0, str(Path(__file__).parent))
        from peers import TorchTransformer, marian

        from allyouneed.config import parse
        from allyouneed.models.encoder_decoder import EncoderDecoderConfig
        from allyouneed.training.optimizer import AdamConfig
        from allyouneed.training.workers import Workers

        tree = {"width": 256, "hidden": 1024, "encoder_layers": 3, "decoder_layers": 3, "dropout": dropout}
        torch.manual_seed(1)
        ours = parse(EncoderDecoderConfig, {**tree, "mixer": {"type": "softmax", "heads": 4}}).build(self.data.sizes)
        self.model: Any = ours
        if self.name.startswith("torch.nn"):
            self.model = TorchTransformer(ours)
        elif self.name.startswith("marian"):
            self.model = marian(ours)
        self.model.train()
        if self.name == "ours":
            self.workers = Workers(ours, self.cores, 1)
            self.optimizer: Any = AdamConfig(lr=1e-3).build(ours)
        else:
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9, fused=True)
        self.step_number = 0

    def curve(self, steps: int) -> list[float]:
        """Return the losses of the first steps without dropout, from the common initial weights; then reset."""
        self._build(dropout=0.0)
        losses = [self.step()[0] for _ in range(steps)]
        self._build(dropout=0.1)
        return losses

    def run(self, steps: int) -> dict[str, float]:
        """Run and time `steps` steps."""
        wall, cpu, tokens, loss = time.perf_counter(), time.process_time(), 0, 0.0
        for _ in range(steps):
            loss, count = self.step()
            tokens += count
        return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "tokens": tokens, "loss": loss}

    def step(self) -> tuple[float, int]:
        """Run one optimiser step; return its loss and number of target tokens. All arms use the same padded batch."""
        batch = self.data.batch(1, self.step_number)
        self.step_number += 1
        loss = self._ours(_parts(batch, self.cores), batch.tokens) if self.name == "ours" else self._peer(batch)
        return loss, batch.tokens

    def _ours(self, batches: list[Any], tokens: int) -> float:
        import torch

        from allyouneed.tasks.loss import batch_loss

        def job(batch: Any) -> Any:
            def forward_backward(replica: Any) -> float:
                loss = batch_loss(replica, batch, 0.1)
                (loss.total / tokens).backward()
                return float(loss.total.detach())

            return forward_backward

        total = sum(self.workers.run([(self.step_number + i, job(batch)) for i, batch in enumerate(batches)]))
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step(1.0)
        for parameter in self.model.parameters():
            parameter.grad = None
        return total / tokens

    def _peer(self, batch: Any) -> float:
        """Run one step of the usual training loop."""
        import torch
        from torch.nn import functional as F

        from allyouneed.text.specials import PAD

        source, inputs, outputs = batch.source_BS, batch.input_BT, batch.output_BT
        if self.name.startswith("torch.nn"):
            logits = self.model(source, source == PAD, inputs)
        else:
            logits = self.model(
                input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=inputs, use_cache=False
            ).logits
        loss = F.cross_entropy(logits.flatten(0, 1), outputs.flatten(), ignore_index=PAD, label_smoothing=0.1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())


def _parts(batch: Any, count: int) -> list[Any]:
    """Distribute the rows of a batch to workers; the padding does not change."""
    from allyouneed.tasks import Batch

    return [Batch(**{k: None if v is None else v[i::count] for k, v in vars(batch).items()}) for i in range(count)]


def prepare(folder: Path, tokens: int) -> tuple[Any, str]:
    """Return Multi30k if available, else dates of the built-in data."""
    from allyouneed.config import parse
    from allyouneed.tasks.numbers import DatesConfig
    from allyouneed.tasks.translation import TranslationConfig

    data = Path(os.environ.get("ALLYOUNEED_DATA", "../shared/data")) / "translation" / "multi30k"
    if data.is_dir():
        files = {split: [str(data / f"{split}.en"), str(data / f"{split}.de")] for split in ("train", "val")}
        tree = {"train": files["train"], "valid": files["val"], "tokenizer": {"kind": "bpe", "size": 8000}}
        task: Any = parse(TranslationConfig, {**tree, "batch_tokens": tokens})
        return task.prepare(folder / f"multi30k-{tokens}", 1), "multi30k"
    task = parse(DatesConfig, {"batch_tokens": tokens, "tokenizer": {"kind": "bpe", "size": 8000}, "shared": True})
    return task.prepare(folder / f"dates-{tokens}", 1), "dates"


if __name__ == "__main__":
    main()
