"""Compare the training speed of recurrences: ours, torch.nn's layers, and a loop over torch.nn's cells.

    python benchmarks/recurrent_speed.py [--rounds 9] [--rows 32] [--length 64] [--width 256]

One thread, forward and backward, the same weights and inputs. Before anything is timed, outputs must agree. The arms
alternate, round after round, so that load on the machine affects all of them; CPU time is measured. Ratios are computed
per round; the median and half of the interquartile range are printed.

Also the decoder of Bahdanau et al.: ours against nn.GRUCell and nn.Linear in a loop, which also computes U h_j once.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from allyouneed.config import parse
from allyouneed.malloc import keep_freed_memory
from allyouneed.mixers.recurrent import Cell, CellKind
from allyouneed.models.bahdanau import BahdanauDecoder, BothWaysEncoder
from allyouneed.models.seq2seq import Seq2Seq, Seq2SeqConfig
from allyouneed.sizes import Sizes

LAYERS: dict[CellKind, tuple[type[nn.RNNBase], type[nn.RNNCellBase]]] = {
    "rnn": (nn.RNN, nn.RNNCell),
    "lstm": (nn.LSTM, nn.LSTMCell),
    "gru": (nn.GRU, nn.GRUCell),
}
Arm = Callable[[], Tensor]  # a forward pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=32, help="batch size (default: %(default)s)")
    parser.add_argument("--length", type=int, default=64, help="sequence length (default: %(default)s)")
    parser.add_argument("--width", type=int, default=256, help="width of the layers (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    keep_freed_memory()
    sizes = f"B:{options.rows}|T:{options.length}|D:{options.width}"
    print(f"tokens per CPU-second, forward and backward; {sizes}|float32|threads:1|torch:{torch.__version__}\n")
    print("| recurrence | ours | torch.nn layer | loop of torch.nn cells | ours / layer | ours / loop |")
    print("| --- | --- | --- | --- | --- | --- |")
    tokens = options.rows * options.length
    for kind in LAYERS:
        for padded in (False, True):
            arms, weights = recurrences(kind, options.rows, options.length, options.width, padded)
            line(f"{kind}{', padded rows' if padded else ''}", arms, weights, tokens, options.rounds)
    arms, weights = decoders(options.rows, 16, options.length, options.width)
    line("Bahdanau's model, 16 source positions", arms, weights, tokens, options.rounds)


def line(name: str, arms: dict[str, Arm], weights: list[Tensor], tokens: int, rounds: int) -> None:
    """Check that all arms agree, measure them and print a table row."""
    expected = arms["ours"]().detach()
    for arm, run in arms.items():
        worst = float((run().detach() - expected).abs().max())
        if worst > 1e-4:
            raise SystemExit(f"{name}: {arm} differs by {worst:.1e}; nothing is timed")
    noise, speeds = torch.randn_like(expected), {arm: [] for arm in arms}  # type: dict[str, list[float]]
    for number in range(rounds + 1):
        for arm, run in arms.items():
            started = time.process_time()
            torch.autograd.grad(run(), weights, noise, allow_unused=True)
            if number:  # the first round is warm-up
                speeds[arm].append(tokens / (time.process_time() - started))
    cells = [spread(speeds[arm]) if arm in arms else "-" for arm in ("ours", "layer", "loop")]
    for arm in ("layer", "loop"):
        ratios = [a / b for a, b in zip(speeds["ours"], speeds.get(arm, []), strict=False)]
        cells.append(spread(ratios, 2) if ratios else "-")
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def spread(values: list[float], digits: int = 0) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{statistics.median(values):,.{digits}f} ± {(high - low) / 2:,.{digits}f}"


def recurrences(
    kind: CellKind, rows: int, length: int, width: int, padded: bool
) -> tuple[dict[str, Arm], list[Tensor]]:
    """Return the arms of one layer; if `padded`, the last quarter of every second row is padding. The last state is
    part of the output."""
    from allyouneed.mixers.recurrent import run

    layer = LAYERS[kind][0](width, width, batch_first=True)
    cell = LAYERS[kind][1](width, width)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    ours = same_weights(Cell(kind, width, width), layer)
    x = torch.randn(rows, length, width, requires_grad=True)
    valid = torch.ones(rows, length, dtype=torch.bool)
    if padded:
        valid[::2, -(length // 4) :] = False
    lengths, keep = valid.sum(dim=1), valid.unsqueeze(-1)

    def by_us() -> Tensor:
        y, state = run(ours, x, valid if padded else None)
        return joined(y, state.h_BK)

    def by_layer() -> Tensor:
        if not padded:
            y, last = layer(x)
        else:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            y, last = layer(packed)
            y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
        return joined(y, (last[0] if kind == "lstm" else last)[0])

    def by_loop() -> Tensor:
        zero = x.new_zeros(rows, width)
        state: Any = (zero, zero) if kind == "lstm" else zero
        outputs = []
        for t in range(length):
            new = cell(x[:, t], state)
            if padded:
                pairs = zip(new, state, strict=True) if kind == "lstm" else [(new, state)]
                kept = [torch.where(keep[:, t], a, b) for a, b in pairs]
                new = tuple(kept) if kind == "lstm" else kept[0]
            state = new
            outputs.append(state[0] if kind == "lstm" else state)
        return joined(torch.stack(outputs, dim=1), outputs[-1])

    def joined(y: Tensor, last: Tensor) -> Tensor:
        return torch.cat([y.masked_fill(~keep, 0.0), last.unsqueeze(1)], dim=1)

    weights = [x, *ours.parameters(), *layer.parameters(), *cell.parameters()]
    return {"ours": by_us, "layer": by_layer, "loop": by_loop}, weights


def same_weights(ours: Cell, layer: nn.RNNBase, suffix: str = "_l0") -> Cell:
    theirs = {name: layer.get_parameter(name + suffix) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    with torch.no_grad():
        ours.input.weight.copy_(theirs["weight_ih"])
        ours.past.weight.copy_(theirs["weight_hh"])
        ours.input.bias.copy_(theirs["bias_ih"])
        if ours.kind == "gru":
            ours.past.bias.copy_(theirs["bias_hh"])
        else:
            ours.input.bias += theirs["bias_hh"]
    return ours


class PlainRnnSearch(nn.Module):
    """Bahdanau's model written with torch.nn."""

    def __init__(self, ours: Seq2Seq, width: int) -> None:
        super().__init__()
        self.ours = ours
        encoder, decoder = ours.encoder, ours.decoder
        assert isinstance(encoder, BothWaysEncoder)
        assert isinstance(decoder, BahdanauDecoder)
        self.encoder = nn.GRU(width, width, batch_first=True, bidirectional=True)
        same_weights(encoder.forth, self.encoder)
        same_weights(encoder.back, self.encoder, "_l0_reverse")
        self.cell = nn.GRUCell(3 * width, width)
        with torch.no_grad():
            self.cell.weight_ih.copy_(torch.cat([decoder.cell.input.weight, decoder.context.weight], dim=1))
            self.cell.weight_hh.copy_(decoder.cell.past.weight)
            self.cell.bias_ih.copy_(decoder.cell.input.bias)
            self.cell.bias_hh.copy_(decoder.cell.past.bias)
        self.begin, self.maxout, self.cross = decoder.begin, decoder.maxout, decoder.cross

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        h, last = self.encoder(self.ours.source(source, source))
        keys, s = self.cross.key(h), torch.tanh(self.begin(last[1]))
        y, outputs = self.ours.target(target, target), []
        for t in range(target.shape[1]):
            e = self.cross.sum(torch.tanh(self.cross.query(s).unsqueeze(1) + keys)).squeeze(-1)
            c = (e.softmax(dim=1).unsqueeze(1) @ h).squeeze(1)
            s = self.cell(torch.cat([y[:, t], c], dim=1), s)
            wide = self.maxout(torch.cat([s, y[:, t], c], dim=1))
            outputs.append(wide.unflatten(1, (-1, 2)).amax(dim=2))
        return torch.stack(outputs, dim=1)


def decoders(rows: int, source: int, target: int, width: int) -> tuple[dict[str, Arm], list[Tensor]]:
    settings = {"attention": "bahdanau", "cell": "gru", "width": width}
    ours = parse(Seq2SeqConfig, settings).build(Sizes(100, 100))
    plain = PlainRnnSearch(ours, width)
    source_ids, target_ids = torch.randint(100, (rows, source)), torch.randint(100, (rows, target))
    arms: dict[str, Arm] = {
        "ours": lambda: ours.hidden(target_ids, ours.condition(source_ids))[0],
        "loop": lambda: plain(source_ids, target_ids),
    }
    return arms, list(plain.parameters())


if __name__ == "__main__":
    main()
