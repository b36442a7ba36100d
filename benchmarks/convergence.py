"""Measure the error of approximate attention against exact attention, over the cost of the approximation.

    python benchmarks/convergence.py [--seeds 8] [--out docs/images/convergence.svg]

- reformer: relative error of the output against full attention with the same shared queries and keys, over rounds;
- performer: against softmax attention, over features, with the line 1 / sqrt(M) of its theory;
- linformer: against softmax attention, over slots that average n / k neighbours; exact at k = n (drawn at 1e-8).

One layer, float64, random weights, n = 256; mean over seeds of |ours - full| / |full|.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
import torch
from torch import Tensor
from torch.nn import functional as F

from allyouneed.mixers.linformer import LinformerConfig
from allyouneed.mixers.performer import PerformerConfig
from allyouneed.mixers.reformer import ReformerConfig

matplotlib.use("svg")
import matplotlib.pyplot as plt

LENGTH, WIDTH, HEADS = 256, 64, 4
Error = Callable[[int], float]  # cost -> error of one random layer


def distance(ours: Tensor, full: Tensor) -> float:
    return float((ours - full).norm() / full.norm())


def reformer(rounds: int) -> float:
    x_BTD = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)
    mixer = ReformerConfig(heads=HEADS, buckets=16, rounds=rounds, chunk=LENGTH).build(WIDTH).double()
    q_BHTK, v_BHTK = mixer.query_value(x_BTD).unflatten(2, (2 * HEADS, -1)).transpose(1, 2).chunk(2, dim=1)
    k_BHTK = F.normalize(q_BHTK, dim=-1) * q_BHTK.shape[-1] ** 0.5
    visible_TT = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(-1)
    visible_TT[0, 0] = True  # the first position has only itself to read
    full = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=visible_TT)
    return distance(mixer(x_BTD)[0], mixer.output(full.transpose(1, 2).flatten(2)))


def performer(features: int) -> float:
    x_BTD = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64) / 2  # large scores have heavy tails
    mixer = PerformerConfig(heads=HEADS, features=features).build(WIDTH, role="bidirectional").double()
    full = F.scaled_dot_product_attention(*mixer.project.queries_keys_values(x_BTD))
    return distance(mixer(x_BTD)[0], mixer.project.merge(full))


def linformer(slots: int) -> float:
    # Similar neighbours, as in signals: white noise has no low-rank structure.
    x_BTD = F.avg_pool1d(torch.randn(1, WIDTH, LENGTH + 31, dtype=torch.float64), 32, 1).mT * 32**0.5
    config = LinformerConfig(heads=HEADS, slots=slots, max_length=LENGTH)
    mixer = config.build(WIDTH, role="bidirectional").double()
    mixer.along_NHRS.copy_(torch.eye(slots).repeat_interleave(LENGTH // slots, dim=1) * slots / LENGTH)
    full = F.scaled_dot_product_attention(*mixer.project.queries_keys_values(x_BTD))
    return distance(mixer(x_BTD)[0], mixer.project.merge(full))


PANELS: list[tuple[str, str, Sequence[int], Error]] = [
    ("reformer, 16 buckets", "rounds of hashing", [1, 2, 4, 8, 16, 32, 64], reformer),
    ("performer", "random features M", [16, 64, 256, 1024, 4096], performer),
    (f"linformer, n = {LENGTH}", "slots k", [4, 8, 16, 32, 64, 128, 256], linformer),
]


@torch.no_grad()
def measure(error: Error, sizes: Sequence[int], seeds: int) -> list[float]:
    means = []
    for size in sizes:
        total = 0.0
        for seed in range(seeds):
            torch.manual_seed(seed)
            total += error(size)
        means.append(total / seeds)
    return means


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seeds", type=int, default=8, help="number of seeds (default: %(default)s)")
    arguments.add_argument("--out", type=Path, default=Path("docs/images/convergence.svg"), help="default: %(default)s")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    plt.rcParams["svg.hashsalt"] = "convergence"  # reproducible SVG
    figure, axes = plt.subplots(1, len(PANELS), figsize=(11, 3.2), layout="constrained")
    for axis, (title, what, sizes, error) in zip(axes, PANELS, strict=True):
        errors = measure(error, sizes, options.seeds)
        print(f"{title}: " + ", ".join(f"{size} {e:.2g}" for size, e in zip(sizes, errors, strict=True)), flush=True)
        axis.loglog(sizes, [max(e, 1e-8) for e in errors], "o-", color="black", label="measured")
        if error is performer:
            axis.loglog(sizes, [errors[-1] * (sizes[-1] / m) ** 0.5 for m in sizes], "--", label="1 / sqrt(M)")
        axis.set(title=title, xlabel=what, ylabel="relative error of the output")
        axis.set_xticks(sizes, map(str, sizes))
        axis.minorticks_off()
        axis.legend(frameon=False)
    figure.savefig(options.out, metadata={"Date": None})
    print(f"drawn: {options.out}")


if __name__ == "__main__":
    main()
