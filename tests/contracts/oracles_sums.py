"""Oracles of mixers that keep a summary instead of positions: linear attention, slots, convolutions, recurrences."""

import math
from collections.abc import Callable, Sequence

import torch
from oracle_parts import Reading, dot, head_of
from torch import Tensor

from allyouneed.mixers import Mixer
from allyouneed.mixers.convolution import Convolution
from allyouneed.mixers.linear import Linear
from allyouneed.mixers.linformer import Linformer
from allyouneed.mixers.naive import scaled_dot_product_by_loops
from allyouneed.mixers.nystrom import Nystrom
from allyouneed.mixers.parts.projections import Projections
from allyouneed.mixers.performer import Performer
from allyouneed.mixers.recurrent import Cell, Recurrent


def linear_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """Weights phi(q) . phi(k) / sum, phi = elu + 1, pair by pair   (Katharopoulos et al. 2020, equation 4)."""
    assert isinstance(mixer, Linear)

    def weight(head: int, q_K: Tensor, k_K: Tensor) -> Tensor:
        return dot(_elu_and_one(q_K), _elu_and_one(k_K))

    return _weigh_by_loops(mixer.project, x_TD, reading, weight)


def _elu_and_one(x_K: Tensor) -> Tensor:
    return torch.stack([x + 1 if x > 0 else torch.exp(x) for x in x_K])


def performer_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """Weights phi(q) . phi(k), phi(x)_m = exp(w_m . x' - |x'|^2 / 2)   (Choromanski et al. 2021, lemma 1)."""
    assert isinstance(mixer, Performer)

    def features(head: int, x_K: Tensor) -> Tensor:
        x_K = x_K / x_K.shape[0] ** 0.25
        return torch.stack([torch.exp(dot(w_K, x_K) - dot(x_K, x_K) / 2) for w_K in mixer.direction_HMK[head]])

    def weight(head: int, q_K: Tensor, k_K: Tensor) -> Tensor:
        return dot(features(head, q_K), features(head, k_K))

    return _weigh_by_loops(mixer.project, x_TD, reading, weight)


def softmax_of_projections(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """What a performer estimates: weights exp(q . k / sqrt(K))."""
    assert isinstance(mixer, Performer)

    def weight(head: int, q_K: Tensor, k_K: Tensor) -> Tensor:
        return torch.exp(dot(q_K, k_K) / math.sqrt(q_K.shape[0]))

    return _weigh_by_loops(mixer.project, x_TD, reading, weight)


def _weigh_by_loops(
    project: Projections, x_TD: Tensor, reading: Reading, weight: Callable[[int, Tensor, Tensor], Tensor]
) -> Tensor:
    outputs = []
    for head in range(project.heads):
        q_TK, k_SK, v_SK = head_of(project, x_TD, reading, head)
        rows = []
        for t in range(x_TD.shape[0]):
            seen = [s for s in range(k_SK.shape[0]) if reading.visible(t, s)]
            weights = [weight(head, q_TK[t], k_SK[s]) for s in seen]
            row = torch.zeros_like(v_SK[0])
            for s, w in zip(seen, weights, strict=True):
                row = row + w / torch.stack(weights).sum() * v_SK[s]
            rows.append(row)
        outputs.append(torch.stack(rows))
    y_TD: Tensor = project.output(torch.cat(outputs, dim=-1))
    return y_TD


def linformer_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """softmax(q (E K)^T / sqrt(K)) (F V), slot by slot over the real positions   (Wang et al. 2020, equation 7)."""
    assert isinstance(mixer, Linformer)
    outputs = []
    for head in range(mixer.project.heads):
        q_TK, k_SK, v_SK = head_of(mixer.project, x_TD, reading, head)
        along = mixer.along_NHRS[:, head if mixer.config.share == "none" else 0]
        real = [s for s in range(k_SK.shape[0]) if reading.valid[s]]
        slots = []
        for weights_RS, y_SK in ((along[0], k_SK), (along[-1], v_SK)):
            rows = []
            for weights_S in weights_RS:
                row = torch.zeros_like(y_SK[0])
                for s in real:
                    row = row + weights_S[reading.place(s)] * y_SK[s]
                rows.append(row)
            slots.append(torch.stack(rows))
        outputs.append(scaled_dot_product_by_loops(q_TK, slots[0], slots[1], lambda t, s: any(reading.valid)))
    y_TD: Tensor = mixer.project.output(torch.cat(outputs, dim=-1))
    return y_TD


def fourier_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """Re sum_s sum_d x_sd exp(-2 pi i (t s / n + e d / D)), for real s   (Lee-Thorp et al. 2022, equation 3)."""
    real, width = [t for t in range(len(x_TD)) if reading.valid[t]], x_TD.shape[1]
    rows = []
    for t in range(len(x_TD)):
        row = [x_TD.new_zeros(()) for _ in range(width)]
        for e in range(width if reading.valid[t] else 0):
            for s in real:
                for d in range(width):
                    turns = reading.place(t) * reading.place(s) / len(real) + e * d / width
                    row[e] = row[e] + x_TD[s, d] * math.cos(2 * math.pi * turns)
        rows.append(torch.stack(row))
    return torch.stack(rows)


def nystrom_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """softmax(q ~k^T) A^+ softmax(~q k^T) V + conv(V), position by position   (Xiong et al. 2021, equation 13)."""
    assert isinstance(mixer, Nystrom)
    real, config, outputs = [t for t in range(len(x_TD)) if reading.valid[t]], mixer.config, []
    n, m = len(real), config.landmarks
    heads = [head_of(mixer.project, x_TD[real], reading, head) for head in range(config.heads)] if n else []
    means = [[[_mean(y, j, n, m) for j in range(m)] for y in (q, k)] for q, k, _ in heads] if n > m else []
    between = [_softmax_matrix(far_q, far_k) for far_q, far_k in means]
    largest = max((a[:, j].sum() for a in between for j in range(m)), default=x_TD.new_zeros(()))
    for head, (q, k, v) in enumerate(heads):
        if n <= m:
            y = _softmax_matrix(list(q), list(k)) @ v
        else:
            a, (far_q, far_k), one = between[head], means[head], torch.eye(m, dtype=x_TD.dtype)
            z = a.T / largest
            for _ in range(config.iterations):
                z = z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z))) / 4
            y = _softmax_matrix(list(q), far_k) @ z @ _softmax_matrix(far_q, list(k)) @ v
        outputs.append(y + _filtered(mixer, head, v))
    y_TD = torch.zeros_like(x_TD)
    if n:
        y_TD = y_TD.index_copy(0, torch.tensor(real), mixer.project.output(torch.cat(outputs, dim=-1)))
    return y_TD


def _mean(y_TK: Tensor, segment: int, length: int, segments: int) -> Tensor:
    chosen = [y_TK[t] for t in range(length) if t * segments // length == segment]
    return torch.stack(chosen).sum(dim=0) / len(chosen)


def _softmax_matrix(queries: list[Tensor], keys: list[Tensor]) -> Tensor:
    scores = [torch.stack([dot(q, k) for k in keys]) / math.sqrt(len(q)) for q in queries]
    return torch.stack([score.exp() / score.exp().sum() for score in scores])


def _filtered(mixer: Nystrom, head: int, v_TK: Tensor) -> Tensor:
    """Return sum_j w_j v_(t + j - R/2)."""
    filters, rows = mixer.filters_HR, []
    for t in range(len(v_TK)):
        row = torch.zeros_like(v_TK[0])
        for j in range(0 if filters is None else filters.shape[1]):
            s = t + j - (0 if filters is None else filters.shape[1]) // 2
            if filters is not None and 0 <= s < len(v_TK):
                row = row + filters[head, j] * v_TK[s]
        rows.append(row)
    return torch.stack(rows)


def convolution_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """b + sum_j W_j x, over the real positions j dilations apart; zero beyond the ends."""
    assert isinstance(mixer, Convolution)
    kernel, dilation = mixer.conv_window.kernel, mixer.conv_window.dilation
    after = 0 if reading.role == "causal" else (kernel - 1) // 2
    at = {reading.place(t): t for t in range(len(x_TD)) if reading.valid[t]}
    outputs = []
    for t in range(len(x_TD)):
        y_D = mixer.linear.bias.clone()
        for j, weight_DD in enumerate(mixer.linear.weight.split(x_TD.shape[1], dim=1)):
            place = reading.place(t) + (j - (kernel - 1) + after) * dilation
            if place in at:
                y_D = y_D + weight_DD @ x_TD[at[place]]
        outputs.append(y_D)
    return torch.stack(outputs)


def recurrent_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """One position after the other; padding is skipped and returns zeros."""
    assert isinstance(mixer, Recurrent)
    real = [t for t in range(len(x_TD)) if reading.valid[t]]
    forth_TK = _recur(mixer.forth, x_TD, real)
    if reading.role == "causal":
        return forth_TK
    return torch.cat([forth_TK, _recur(mixer.back, x_TD, real[::-1])], dim=1)


def _recur(cell: Cell, x_TD: Tensor, order: Sequence[int]) -> Tensor:
    """h after each of the positions, read in the given order from zeros."""
    h_K, c_K = x_TD.new_zeros(cell.width), x_TD.new_zeros(cell.width)
    found = {}
    for t in order:
        new = (cell.input.weight @ x_TD[t] + cell.input.bias).split(cell.width)
        old = (cell.past.weight @ h_K).split(cell.width)
        if cell.kind == "rnn":
            h_K = (new[0] + old[0]).tanh()
        elif cell.kind == "lstm":
            i, f, g, o = (x + y for x, y in zip(new, old, strict=True))
            c_K = f.sigmoid() * c_K + i.sigmoid() * g.tanh()
            h_K = o.sigmoid() * c_K.tanh()
        else:
            b = cell.past.bias.split(cell.width)
            r, z = ((new[part] + old[part] + b[part]).sigmoid() for part in range(2))
            n = (new[2] + r * (old[2] + b[2])).tanh()
            h_K = (1 - z) * n + z * h_K
        found[t] = h_K
    return torch.stack([found.get(t, x_TD.new_zeros(cell.width)) for t in range(len(x_TD))])
