"""Compare time and memory of mixers on long sequences with full attention and public implementations.

    python benchmarks/long_sequences.py [--lengths 1024,4096,16384] [--repeats 3] [--only window,linear]

One layer of width 256 with 4 heads, projections included, batch 1, one thread; a "stack" is five complete blocks. Each
repeat runs every candidate once, so that load on the machine affects all of them; times are medians of CPU time. Memory
is the peak above the memory in use before, each candidate in its own process. Peers that are not installed are listed
and skipped. All peers are skipped beyond 16,384 tokens.
"""

import argparse
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed.config import parse
from allyouneed.malloc import keep_freed_memory
from allyouneed.mixers import MIXERS, Role
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.parts.stack import Stack

WIDTH, HEADS, WINDOW = 256, 4, 256
BLOCK, RANDOM = 64, 3  # of BigBird
Layer = Callable[[Tensor], Tensor]

OURS: dict[str, tuple[Role, dict[str, object]]] = {
    "softmax": ("bidirectional", {"type": "softmax"}),
    "softmax causal": ("causal", {"type": "softmax"}),
    "window": ("bidirectional", {"type": "window", "window": WINDOW}),
    "window causal": ("causal", {"type": "window", "window": WINDOW}),
    "longformer": ("bidirectional", {"type": "longformer", "window": WINDOW, "everywhere": 16}),
    "bigbird": ("bidirectional", {"type": "bigbird", "block": BLOCK, "random": RANDOM}),
    "bigbird causal": ("causal", {"type": "bigbird", "block": BLOCK, "random": RANDOM}),
    "sparse strided causal": ("causal", {"type": "sparse", "pattern": "strided", "stride": 128}),
    "sparse fixed causal": ("causal", {"type": "sparse", "pattern": "fixed", "stride": 128, "summaries": 8}),
    "linear causal": ("causal", {"type": "linear"}),
    "performer": ("bidirectional", {"type": "performer", "features": 256}),
    "performer causal": ("causal", {"type": "performer", "features": 256}),
    "linformer": ("bidirectional", {"type": "linformer", "slots": 256}),
    "local causal": ("causal", {"type": "local", "block": 256}),
    "memory-compressed": ("bidirectional", {"type": "memory-compressed", "stride": 3}),
    "memory-compressed causal": ("causal", {"type": "memory-compressed", "stride": 3}),
    "xl": ("causal", {"type": "xl", "memory": WINDOW}),
    "compressive": ("causal", {"type": "compressive", "memory": WINDOW // 2, "compressed": WINDOW // 2}),
    "reformer": ("bidirectional", {"type": "reformer", "chunk": 64}),
    "reformer causal": ("causal", {"type": "reformer", "chunk": 64}),
}


# Stacks of five blocks: the decoder alone, and the one for long sources (Liu et al. 2018).
STACKS: dict[str, list[dict[str, object]]] = {
    "T-D stack": [{"type": "softmax"}],
    "T-DMCA stack": [{"type": "local", "block": 256}, {"type": "memory-compressed", "stride": 3}],
}


def stacked(name: str) -> Layer:
    mixers = [{**settings, "heads": HEADS} for settings in STACKS[name]]
    config = parse(DecoderConfig, {"width": WIDTH, "hidden": 4 * WIDTH, "norm": "pre", "dropout": 0.0, "mixer": mixers})
    stack = Stack(config, 5, "causal")
    return lambda x_BTD: stack(x_BTD, stack.start())[0]


def ours(name: str, length: int) -> Layer:
    if name in STACKS:
        return stacked(name)
    role, settings = OURS[name]
    if settings["type"] == "reformer":
        settings = {**settings, "buckets": buckets(length // 64)}  # as many as the peers use
    if settings["type"] == "linformer":
        settings = {**settings, "max_length": length}  # as the peer
    config = parse(MIXERS[str(settings["type"])], {**settings, "heads": HEADS})
    mixer = config.build(WIDTH, role=role)
    return lambda x_BTD: mixer(x_BTD)[0]


def buckets(count: int) -> int | list[int]:
    """Return the default of Hugging Face's layer: two factors if there are more than 128 buckets."""
    power = max(1, round(math.log2(max(2, count))))
    return 2**power if power <= 7 else [2 ** (power // 2), 2 ** (power - power // 2)]


class FullAttention(nn.Module):
    """Full attention as a torch user would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x_BTD: Tensor) -> Tensor:
        q, k, v = self.inner(x_BTD).view(1, -1, 3 * HEADS, WIDTH // HEADS).transpose(1, 2).chunk(3, dim=1)
        y: Tensor = self.outer(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return y


def hugging_face_longformer() -> Layer:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(hidden_size=WIDTH, num_attention_heads=HEADS, attention_window=[2 * WINDOW])
    layer, outer = LongformerSelfAttention(config, layer_id=0).eval(), nn.Linear(WIDTH, WIDTH)

    def run(x_BTD: Tensor) -> Tensor:
        is_global = (torch.arange(x_BTD.shape[1]) < 16)[None]
        y = layer(
            x_BTD,
            attention_mask=torch.where(is_global, 10000.0, 0.0),
            is_index_masked=torch.zeros_like(is_global),
            is_index_global_attn=is_global,
            is_global_attn=True,
        )[0]
        out: Tensor = outer(y)
        return out

    return run


def hugging_face_bigbird(length: int) -> Layer:
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    config = BigBirdConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        block_size=BLOCK,
        num_random_blocks=RANDOM,
        max_position_embeddings=length,
    )
    # In evaluation mode it would read block 0 instead of random blocks.
    layer, outer = BigBirdBlockSparseAttention(config, seed=0).train(), nn.Linear(WIDTH, WIDTH)
    blocks = length // BLOCK
    blocked = torch.ones(1, blocks, BLOCK)
    masks = {
        "band_mask": torch.ones(1, 1, blocks - 4, BLOCK, 3 * BLOCK),
        "from_mask": torch.ones(1, 1, length, 1),
        "to_mask": torch.ones(1, 1, 1, length),
        "from_blocked_mask": blocked,
        "to_blocked_mask": blocked,
    }

    def run(x_BTD: Tensor) -> Tensor:
        out: Tensor = outer(layer(x_BTD, **masks)[0])
        return out

    return run


def performer_pytorch(causal: bool) -> Layer:
    from performer_pytorch import SelfAttention

    layer = SelfAttention(dim=WIDTH, heads=HEADS, dim_head=64, causal=causal, nb_features=256)
    return lambda x_BTD: layer(x_BTD)


def linformer_package(length: int) -> Layer:
    from linformer import LinformerSelfAttention

    return LinformerSelfAttention(dim=WIDTH, seq_len=length, heads=HEADS, k=256, one_kv_head=False, share_kv=False)


def local_attention() -> Layer:
    from local_attention import LocalAttention

    project, attend = FullAttention(), LocalAttention(dim=64, window_size=WINDOW, causal=True, look_backward=1)

    def run(x_BTD: Tensor) -> Tensor:
        q, k, v = project.inner(x_BTD).view(1, -1, 3 * HEADS, 64).transpose(1, 2).chunk(3, dim=1)
        y: Tensor = project.outer(attend(q, k, v).transpose(1, 2).flatten(2))
        return y

    return run


def memory_compressed_attention(causal: bool) -> Layer:
    from memory_compressed_attention import MemoryCompressedAttention

    return MemoryCompressedAttention(WIDTH, HEADS, causal=causal, compression_factor=3)


def reformer_pytorch(causal: bool) -> Layer:
    """4 rounds, chunks of 64, as ours; without bias, with n / 64 buckets, and up to 127 keys read per round."""
    from reformer_pytorch import LSHSelfAttention

    layer = LSHSelfAttention(dim=WIDTH, heads=HEADS, bucket_size=64, n_hashes=4, causal=causal)
    return lambda x_BTD: layer(x_BTD)


def hugging_face_reformer(length: int) -> Layer:
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    config = ReformerConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        attention_head_size=WIDTH // HEADS,
        num_hashes=4,
        num_buckets=max(2, length // 64),
        lsh_attn_chunk_length=64,
        lsh_attention_probs_dropout_prob=0.0,
        is_decoder=True,
    )
    layer, outer = LSHSelfAttention(config), nn.Linear(WIDTH, WIDTH)
    return lambda x_BTD: outer(layer(x_BTD).hidden_states)


def linear_attention_transformer() -> Layer:
    from linear_attention_transformer.linear_attention_transformer import SelfAttention

    return SelfAttention(WIDTH, HEADS, causal=True)


PEERS: dict[str, tuple[str | None, Callable[[int], Layer]]] = {
    "full SDPA": (None, lambda _: FullAttention()),
    "Hugging Face Longformer": ("transformers", lambda _: hugging_face_longformer()),
    "Hugging Face BigBird": ("transformers", hugging_face_bigbird),
    "performer-pytorch": ("performer_pytorch", lambda _: performer_pytorch(False)),
    "performer-pytorch causal": ("performer_pytorch", lambda _: performer_pytorch(True)),
    "linear-attention-transformer causal": ("linear_attention_transformer", lambda _: linear_attention_transformer()),
    "linformer package": ("linformer", linformer_package),
    "reformer-pytorch": ("reformer_pytorch", lambda _: reformer_pytorch(False)),
    "reformer-pytorch causal": ("reformer_pytorch", lambda _: reformer_pytorch(True)),
    "Hugging Face LSH causal": ("transformers", hugging_face_reformer),
    "local-attention causal": ("local_attention", lambda _: local_attention()),
    "m-c-attention": ("memory_compressed_attention", lambda _: memory_compressed_attention(False)),
    "m-c-attention causal": ("memory_compressed_attention", lambda _: memory_compressed_attention(True)),
}
# Beyond 16,384 tokens peers and quadratic layers take minutes, or more memory than available.
QUADRATIC = {"softmax", "softmax causal", "memory-compressed", "memory-compressed causal", *STACKS}
FITS = dict.fromkeys({*PEERS, *QUADRATIC}, 16384)
# Pairs that read equally much in the same way.
AGAINST = [
    ("window", "full SDPA"),
    ("longformer", "Hugging Face Longformer"),
    ("bigbird", "Hugging Face BigBird"),
    ("window causal", "local-attention causal"),
    ("linear causal", "linear-attention-transformer causal"),
    ("performer", "performer-pytorch"),
    ("performer causal", "performer-pytorch causal"),
    ("linformer", "linformer package"),
    ("reformer", "reformer-pytorch"),
    ("reformer causal", "reformer-pytorch causal"),
    ("reformer causal", "Hugging Face LSH causal"),
    ("memory-compressed", "m-c-attention"),
    ("memory-compressed causal", "m-c-attention causal"),
]


def build(name: str, length: int) -> Layer:
    torch.manual_seed(0)
    return ours(name, length) if name in {*OURS, *STACKS} else PEERS[name][1](length)


def once(layer: Layer, x_BTD: Tensor) -> tuple[float, float]:
    """Return the CPU seconds of a forward pass, and of a forward and backward pass."""
    with torch.no_grad():
        start = time.process_time()
        layer(x_BTD)
        forward = time.process_time() - start
    start = time.process_time()
    layer(x_BTD).square().mean().backward()  # type: ignore[no-untyped-call]
    return forward, time.process_time() - start


def peak(name: str, length: int) -> float:
    """Return the peak MiB of one forward and backward pass, measured in a child process."""
    command = [sys.executable, __file__, "--peak", name, "--lengths", str(length)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else math.nan


def print_peak(name: str, length: int) -> None:
    layer, x_BTD = build(name, length), torch.randn(1, length, WIDTH, requires_grad=True)
    before = resident("VmRSS")
    once(layer, x_BTD)
    print((resident("VmHWM") - before) / 1024)


def resident(what: str) -> int:
    """Return the current (VmRSS) or peak (VmHWM) KiB. `getrusage` would include memory of the parent process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1])
    raise SystemExit("/proc/self/status not found; memory cannot be measured on this system")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--lengths", default="1024,4096,16384", help="sequence lengths (default: %(default)s)")
    arguments.add_argument("--repeats", type=int, default=3, help="timed rounds (default: %(default)s)")
    arguments.add_argument("--only", default="", help="comma-separated names of layers (default: all)")
    arguments.add_argument("--keep-freed", action="store_true", help="use our allocator setting, for the peers too")
    arguments.add_argument("--peak", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    lengths = [int(length) for length in options.lengths.split(",")]
    if options.peak:
        print_peak(options.peak, lengths[0])
        return
    if options.keep_freed:
        keep_freed_memory()  # applies to all candidates, which share this process
    missing = {needs for needs, _ in PEERS.values() if needs is not None and find_spec(needs) is None}
    names = [*OURS, *STACKS, *(name for name, (needs, _) in PEERS.items() if needs not in missing)]
    names = [name for name in names if not options.only or name in options.only.split(",")]
    if missing:
        print("not installed, skipped:", ", ".join(sorted(missing)))
    print(f"{'layer':26} {'length':>7} {'forward ms':>11} {'+ backward':>11} {'spread':>13} {'peak MiB':>9}")
    times: dict[str, dict[int, float]] = {}
    for length in lengths:
        x_BTD = torch.randn(1, length, WIDTH, requires_grad=True)
        layers = {name: build(name, length) for name in names if length <= FITS.get(name, length)}
        for layer in layers.values() if length == lengths[0] else ():
            once(layer, x_BTD)  # warm-up: exclude one-time loading
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in layers}
        for _ in range(options.repeats):
            for name, layer in layers.items():
                runs[name].append(once(layer, x_BTD))
        for name in layers:
            forward = statistics.median(run[0] for run in runs[name]) * 1e3
            both = sorted(run[1] * 1e3 for run in runs[name])
            times.setdefault(name, {})[length] = statistics.median(both)
            print(
                f"{name:26} {length:7} {forward:11.1f} {statistics.median(both):11.1f} "
                f"{both[0]:6.0f}-{both[-1]:<6.0f} {peak(name, length):9.0f}",
                flush=True,
            )
        for mine, theirs in AGAINST:
            if mine in runs and theirs in runs:
                ratios = sorted(b[1] / a[1] for a, b in zip(runs[mine], runs[theirs], strict=True))
                spread = f"{ratios[0]:.2f}-{ratios[-1]:.2f}"
                print(f"  {mine} is {statistics.median(ratios):.2f} ({spread}) times as fast as {theirs}", flush=True)
    for name, found in times.items():
        far = {length: found[length] for length in found if length >= 4096}
        if len(far) > 1:
            print(f"time of {name} grows with n^{slope(far):.2f} from {min(far):,} to {max(far):,}")


def slope(times: dict[int, float]) -> float:
    """Return the slope of the line through the logarithms."""
    x, y = ([math.log(value) for value in values] for values in (times.keys(), times.values()))
    return statistics.linear_regression(x, y).slope


if __name__ == "__main__":
    main()
