"""Compare the training speed of the Neural Turing Machine with one in the style of the public PyTorch implementation.

    python benchmarks/ntm_speed.py [--batch 32] [--length 10] [--rounds 7]

loudinthecloud/pytorch-ntm cannot be installed as a package and is written for an early PyTorch. The peer is therefore a
reimplementation from the paper's equations in its style: one Python step per position, a module with its own linear
layer for each head, heads that address the memory one after another, `cosine_similarity` over the memory, a circular
convolution for each row of the batch, and an output layer at every step. It has our weights and our order of operations
(address, write, read), so both compute the same: before anything is timed, losses and gradients must agree. Both
alternate in one process with one thread and the same allocator setting. CPU time of forward, backward and an Adam step
is compared.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed.config import parse
from allyouneed.malloc import keep_freed_memory
from allyouneed.models.ntm import NTM, NTMConfig
from allyouneed.tasks import Batch
from allyouneed.tasks.bits import CopyBitsConfig
from allyouneed.tasks.loss import batch_loss
from allyouneed.version import __version__


class PeerHead(nn.Module):
    """A head with its own linear layer and addressing."""

    def __init__(self, weight: Tensor, bias: Tensor, width: int, writes: bool) -> None:
        super().__init__()
        self.sizes = [width, 1, 1, 3, 1, width, width] if writes else [width, 1, 1, 3, 1]
        self.linear = nn.Linear(weight.shape[1], sum(self.sizes))
        self.linear.weight.data, self.linear.bias.data = weight.clone(), bias.clone()

    def forward(self, h_BF: Tensor, memory_BMK: Tensor, before_BM: Tensor) -> tuple[Tensor, ...]:
        key, beta, gate, shift, gamma, *written = self.linear(h_BF).split(self.sizes, dim=1)
        cosine_BM = F.cosine_similarity(memory_BMK, key.tanh().unsqueeze(1), dim=-1)
        content_BM = torch.softmax(F.softplus(beta) * cosine_BM, dim=1)
        gated_BM = gate.sigmoid() * content_BM + (1 - gate.sigmoid()) * before_BM
        shifted_BM = convolve_rows(gated_BM, shift.softmax(dim=1))
        sharp_BM = (shifted_BM + 1e-12) ** (1 + F.softplus(gamma))
        return (sharp_BM / sharp_BM.sum(dim=1, keepdim=True), *written)


def convolve_rows(weight_BM: Tensor, shift_B3: Tensor) -> Tensor:
    """Apply a circular convolution, row by row."""
    result_BM = torch.zeros_like(weight_BM)
    for row in range(weight_BM.shape[0]):
        ring = torch.cat([weight_BM[row, -1:], weight_BM[row], weight_BM[row, :1]])
        result_BM[row] = F.conv1d(ring.view(1, 1, -1), shift_B3[row].view(1, 1, -1)).view(-1)
    return result_BM


class Peer(nn.Module):
    """The complete machine with our weights."""

    def __init__(self, ours: NTM) -> None:
        super().__init__()
        config = ours.config
        hidden, self.width, self.slots, self.bits = config.hidden, config.slot_width, config.slots, config.bits
        self.table, self.ids = ours.source.table_VN, ours.head.weight_VD
        assert self.table is not None
        assert ours.output is not None
        self.cell = nn.LSTMCell(self.table.shape[1] + config.read_heads * self.width, hidden)
        order = [0, 1, 3, 2]  # ours: i f o g; torch: i f g o
        u, x = (w.unflatten(0, (4, hidden))[order].flatten(0, 1) for w in (ours.controller.weight, ours.source.weight))
        self.cell.weight_hh.data = u[:, :hidden].detach().clone()
        nn.init.zeros_(self.cell.bias_hh)
        self.cell.weight_ih.data = torch.cat([x, u[:, hidden:]], dim=1).detach().clone()
        self.cell.bias_ih.data = ours.controller.bias.unflatten(0, (4, hidden))[order].flatten().detach().clone()
        self.heads = nn.ModuleList(peer_heads(ours))
        self.reads = config.read_heads
        self.output = nn.Linear(ours.output.in_features, ours.output.out_features)
        self.output.load_state_dict(ours.output.state_dict())

    def forward(self, source_BS: Tensor, target_BT: Tensor) -> Tensor:
        """Return the logits of the target."""
        assert self.table is not None
        B = source_BS.shape[0]
        memory_BMK = torch.full((B, self.slots, self.width), 1e-6)
        weights = [F.one_hot(torch.zeros(B, dtype=torch.long), self.slots).float() for _ in self.heads]
        reads = [torch.full((B, self.width), 1e-6) for _ in range(self.reads)]
        state, outputs = None, []
        for t in range(source_BS.shape[1] + target_BT.shape[1]):
            x = self.table[source_BS[:, t]] if t < source_BS.shape[1] else torch.zeros(B, self.table.shape[1])
            state = self.cell(torch.cat([x, *reads], dim=1), state)
            heads = [head(state[0], memory_BMK, before_BM) for head, before_BM in zip(self.heads, weights, strict=True)]
            weights = [one[0] for one in heads]
            for weight_BM, erase_BK, _ in heads[self.reads :]:
                memory_BMK = memory_BMK * (1 - weight_BM.unsqueeze(2) @ erase_BK.sigmoid().unsqueeze(1))
            for weight_BM, _, add_BK in heads[self.reads :]:
                memory_BMK = memory_BMK + weight_BM.unsqueeze(2) @ add_BK.tanh().unsqueeze(1)
            reads = [(weight_BM.unsqueeze(1) @ memory_BMK).squeeze(1) for weight_BM in weights[: self.reads]]
            outputs.append(self.output(torch.cat([state[0], *reads], dim=1)))
        z_BTN = torch.stack(outputs[source_BS.shape[1] :], dim=1)
        bits = self.bits
        normal_BT1 = F.softplus(z_BTN[:, :, :bits]).sum(dim=2, keepdim=True)
        return torch.cat([z_BTN, -normal_BT1], dim=2) @ self.ids.T


def peer_heads(ours: NTM) -> list[PeerHead]:
    """Split our single projection into those of the heads."""
    reads, writes, width = ours.config.read_heads, ours.config.write_heads, ours.config.slot_width
    heads = reads + writes
    index = torch.arange(ours.heads.out_features)
    parts = index.split([heads * width, writes * width, writes * width, heads, heads, heads, 3 * heads])
    keys, adds, erases, gates, betas, gammas, shifts = (
        part.view(count, -1) for part, count in zip(parts, [heads, writes, writes, *4 * [heads]], strict=True)
    )
    found = []
    for head in range(heads):
        # conv1d does not flip its kernel: its first tap reads the previous slot, as a shift of +1 does.
        rows = [keys[head], betas[head], gates[head], shifts[head], gammas[head]]
        if head >= reads:
            rows += [erases[head - reads], adds[head - reads]]
        chosen = torch.cat(rows)
        weight, bias = ours.heads.weight.detach()[chosen], ours.heads.bias.detach()[chosen]
        found.append(PeerHead(weight, bias, width, head >= reads))
    return found


def peer_loss(peer: Peer, batch: Batch) -> Tensor:
    assert batch.source_BS is not None
    assert batch.input_BT is not None
    assert batch.output_BT is not None
    logits_BTV = peer(batch.source_BS, batch.input_BT)
    return F.cross_entropy(logits_BTV.flatten(0, 1), batch.output_BT.flatten())


def our_loss(ours: NTM, batch: Batch) -> Tensor:
    loss = batch_loss(ours, batch)
    return loss.total / loss.count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32, help="batch size (default: %(default)s)")
    parser.add_argument("--length", type=int, default=10, help="vectors to copy (default: %(default)s)")
    parser.add_argument("--heads", type=int, default=1, help="read heads and write heads (default: %(default)s each)")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    torch.manual_seed(1)
    lengths = [options.length, options.length]
    data = parse(CopyBitsConfig, {"lengths": lengths, "batch": options.batch}).prepare(Path("unused"), 1)
    ours = NTMConfig(embedding="bits", read_heads=options.heads, write_heads=options.heads).build(data.sizes)
    peer = Peer(ours)
    batch = data.batch(1, 0)
    check_parity(ours, peer, batch)
    arms: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: our_loss(ours, batch),
        "peer": lambda: peer_loss(peer, batch),
    }
    optimizers = {name: torch.optim.Adam(m.parameters(), lr=1e-4) for name, m in (("ours", ours), ("peer", peer))}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(options.rounds + 1):
        for name, loss in arms.items():
            started = time.process_time()
            for _ in range(3):
                optimizers[name].zero_grad()
                loss().backward()
                optimizers[name].step()
            if turn:  # the first round is warm-up
                times[name].append((time.process_time() - started) / 3)
    shape = f"B:{options.batch}|length:{options.length}|heads:{options.heads}+{options.heads}|slots:128x20|hidden:100"
    print(f"train step|{shape}|threads:1|torch:{torch.__version__}|v:{__version__}")
    for name, values in times.items():
        print(
            f"{name}: {statistics.median(values) * 1e3:8.1f} ms CPU, {min(values) * 1e3:.1f} to {max(values) * 1e3:.1f}"
        )
    ratios = [theirs / mine for mine, theirs in zip(times["ours"], times["peer"], strict=True)]
    print(f"speed-up: {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f}, n={len(ratios)})")


def check_parity(ours: NTM, peer: Peer, batch: Batch) -> None:
    """Exit unless both compute the same."""
    one, two = our_loss(ours, batch), peer_loss(peer, batch)
    one.backward()
    two.backward()
    mine, theirs = ours.heads.weight.grad, peer.heads[0].linear.weight.grad
    assert mine is not None
    width = ours.config.slot_width
    close = torch.allclose(mine[:width], theirs[:width], rtol=1e-2, atol=1e-5)
    losses = float(one.detach()), float(two.detach())
    if abs(losses[0] - losses[1]) > 1e-4 or not close:
        raise SystemExit(f"the arms compute different results (losses {losses}); nothing is timed")
    print(f"parity: losses {losses[0]:.6f} and {losses[1]:.6f}, gradients of the first head's key agree")


if __name__ == "__main__":
    main()
