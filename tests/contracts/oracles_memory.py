"""Oracles of attention with a memory: of segments, of compressed slots, of buckets."""

import math
from collections.abc import Callable

import torch
from oracle_parts import SCORES, Reading, dot, head_of, project_head
from torch import Tensor

from allyouneed.mixers import Mixer
from allyouneed.mixers.compressive import Compressive
from allyouneed.mixers.memory_compressed import MemoryCompressed
from allyouneed.mixers.naive import attend_by_loops
from allyouneed.mixers.reformer import Reformer
from allyouneed.mixers.xl import XL, Distances


def xl_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """Scores of four terms over the memory before each position   (Dai et al. 2019, section 3.3)."""
    assert isinstance(mixer, XL)

    def visible(t: int, s: int) -> bool:
        return reading.visible(t, s) and reading.place(t) - reading.place(s) <= mixer.config.memory

    outputs = []
    for head in range(mixer.config.heads):
        q_TK, k_SK, v_SK = head_of(mixer.project, x_TD, reading, head)

        def score(t: int, s: int, q_TK: Tensor = q_TK, k_SK: Tensor = k_SK, head: int = head) -> Tensor:
            return xl_score(mixer.distances, head, q_TK[t], k_SK[s], reading.place(t) - reading.place(s))

        outputs.append(attend_by_loops(score, visible, v_SK, x_TD.shape[0]))
    y_TD: Tensor = mixer.project.output(torch.cat(outputs, dim=-1))
    return y_TD


def memory_compressed_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """Attention over a null slot and one slot for every `stride` real positions   (Liu et al. 2018, section 4.2.4)."""
    assert isinstance(mixer, MemoryCompressed)
    stride, heads, width = mixer.config.stride, mixer.config.heads, mixer.project.width
    real = [s for s in range(len(reading.valid)) if reading.valid[s]]
    members = [real[i : i + stride] for i in range(0, len(real), stride)]  # of each slot; the last may be incomplete
    ends = [0, *(reading.place(slot[-1]) for slot in members)]  # positions of slots; the null slot is at 0

    def visible(t: int, j: int) -> bool:
        if reading.role != "causal" or j == 0:
            return True
        return len(members[j - 1]) == stride and ends[j] <= reading.place(t)

    def slots(y_SK: Tensor, which: int, head: int) -> Tensor:
        """Keys (which = 0) or values (1) of a head."""
        K = y_SK.shape[1]
        begin = which * width + head * K
        rows = [mixer.null_N[begin : begin + K]]
        kernel = mixer.along_NPK[which * heads + head]
        for slot in members:
            row = torch.zeros_like(rows[0]) if mixer.bias_N1K is None else mixer.bias_N1K[which * heads + head, 0]
            for i, s in enumerate(slot):
                for a in range(K):
                    row = row + y_SK[s, a] * kernel[i * K + a]
            rows.append(row)
        return torch.stack(rows)

    outputs = []
    for head in range(heads):
        q_TK, k_SK, v_SK = head_of(mixer.project, x_TD, reading, head)
        key_slots, value_slots = slots(k_SK, 0, head), slots(v_SK, 1, head)

        def score(t: int, j: int, q_TK: Tensor = q_TK, keys: Tensor = key_slots, head: int = head) -> Tensor:
            return SCORES[reading.position](mixer, head, q_TK[t], keys[j], reading.place(t), ends[j])

        outputs.append(attend_by_loops(score, visible, value_slots, x_TD.shape[0]))
    y_TD: Tensor = mixer.project.output(torch.cat(outputs, dim=-1))
    return y_TD


def reformer_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """softmax over the nearest members of one's bucket in any round   (Kitaev et al. 2020, equations 2, 3 and 7).

    A position reads itself only if no other is visible. Of each bucket, `chunk` members before (and after) count.
    """
    assert isinstance(mixer, Reformer)
    config = mixer.config
    real = [s for s in range(x_TD.shape[0]) if reading.valid[s]]

    def visible(head: int, q_TK: Tensor) -> dict[int, set[int]]:
        turned = [_turned(q_TK[s], reading.place(s)) if reading.position == "rotary" else q_TK[s] for s in real]
        columns, found = iter(mixer.rotation_HKM[head].T), {t: set[int]() for t in real}
        for _ in range(config.rounds):
            hashes = [[next(columns) for _ in range(factor // 2)] for factor in config.factors]
            buckets: dict[tuple[int, ...], list[int]] = {}
            for s, x_K in zip(real, turned, strict=True):
                bucket = []
                for hashing in hashes:
                    sides = [dot(x_K, column_K).item() for column_K in hashing]
                    sides += [-side for side in sides]
                    bucket.append(sides.index(max(sides)))
                buckets.setdefault(tuple(bucket), []).append(s)
            for members in buckets.values():
                for i, t in enumerate(members):
                    found[t] |= set(members[max(0, i - config.chunk) : i])
                    if reading.role == "bidirectional":
                        found[t] |= set(members[i + 1 : i + 1 + config.chunk])
        return {t: seen or {t} for t, seen in found.items()}

    return _shared_query_key(mixer, x_TD, reading, visible)


def full_shared_query_key(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """What hashing approximates: all other positions are read   (Kitaev et al. 2020, section 2)."""
    assert isinstance(mixer, Reformer)
    T = x_TD.shape[0]

    def visible(head: int, q_TK: Tensor) -> dict[int, set[int]]:
        return {t: {s for s in range(T) if s != t and reading.visible(t, s)} or {t} for t in range(T)}

    return _shared_query_key(mixer, x_TD, reading, visible)


def _shared_query_key(
    mixer: Reformer, x_TD: Tensor, reading: Reading, visible: Callable[[int, Tensor], dict[int, set[int]]]
) -> Tensor:
    heads, outputs = mixer.config.heads, []
    weights = mixer.query_value.weight.chunk(2)
    biases = [None, None] if mixer.query_value.bias is None else mixer.query_value.bias.chunk(2)
    for head in range(heads):
        q_TK, v_TK = (project_head(x_TD, both, head, heads) for both in zip(weights, biases, strict=True))
        seen = visible(head, q_TK)

        def score(t: int, s: int, q_TK: Tensor = q_TK, head: int = head) -> Tensor:
            k_K = q_TK[s] / torch.sqrt(dot(q_TK[s], q_TK[s]) / q_TK.shape[1] + 1e-6)
            return SCORES[reading.position](mixer, head, q_TK[t], k_K, reading.place(t), reading.place(s))

        def sees(t: int, s: int, seen: dict[int, set[int]] = seen) -> bool:
            return s in seen.get(t, set())

        outputs.append(attend_by_loops(score, sees, v_TK, x_TD.shape[0]))
    y_TD: Tensor = mixer.output(torch.cat(outputs, dim=-1))
    return y_TD


def _turned(x_K: Tensor, place: int) -> Tensor:
    """Rotary positions: feature pairs (i, i + K/2) as complex numbers, times exp(i place / base^(2i/K))."""
    K = x_K.shape[0]
    real, imaginary = [], []
    for i in range(K // 2):
        angle = place * 10000.0 ** (-2 * i / K)
        real.append(x_K[i] * math.cos(angle) - x_K[i + K // 2] * math.sin(angle))
        imaginary.append(x_K[i] * math.sin(angle) + x_K[i + K // 2] * math.cos(angle))
    return torch.stack(real + imaginary)


def compressive_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """Each real position with its own line of slots and positions   (Rae et al. 2020, section 3)."""
    assert isinstance(mixer, Compressive)
    config = mixer.config
    real = [t for t in range(x_TD.shape[0]) if reading.valid[t]]
    if not real:
        return torch.zeros_like(x_TD)
    x_TD = x_TD[real]
    groups = [x_TD[i : i + config.rate].detach() for i in range(0, len(real) - config.rate + 1, config.rate)]
    slots = [slot_of(mixer, group).detach() for group in groups]
    rows = []
    for t in range(len(real)):
        old = 0
        while t - ((old + 1) * config.rate - 1) > config.memory:  # the last position of the group is too far away
            old += 1
        line = slots[max(0, old - config.compressed) : old] + [x_TD[s] for s in range(old * config.rate, t + 1)]
        line_TD, outputs = torch.stack(line), []
        alone = Reading("bidirectional", "none", [True] * len(line))
        for head in range(config.heads):
            q_TK, k_SK, v_SK = head_of(mixer.project, line_TD, alone, head)

            def score(_: int, s: int, q_TK: Tensor = q_TK, k_SK: Tensor = k_SK, head: int = head) -> Tensor:
                return xl_score(mixer.distances, head, q_TK[-1], k_SK[s], len(k_SK) - 1 - s)

            outputs.append(attend_by_loops(score, lambda t, s: True, v_SK, 1)[0])
        rows.append(mixer.project.output(torch.cat(outputs)))
    y_TD = torch.zeros(len(reading.valid), x_TD.shape[1], dtype=x_TD.dtype)
    return y_TD.index_copy(0, torch.tensor(real), torch.stack(rows))


def slot_of(mixer: Compressive, group_SD: Tensor) -> Tensor:
    """One vector for a group: feature by feature its mean or maximum, or a filter over all of it."""
    if mixer.config.compression == "convolution":
        flat = torch.cat(list(group_SD))
        return torch.stack(
            [dot(row, flat) + b for row, b in zip(mixer.compress.weight, mixer.compress.bias, strict=True)]
        )
    columns = group_SD.unbind(dim=1)
    return torch.stack([c.sum() / len(c) if mixer.config.compression == "mean" else c.sort()[0][-1] for c in columns])


def xl_score(distances: Distances, head: int, q_K: Tensor, k_K: Tensor, apart: int) -> Tensor:
    """A = q.k + q.(W_R r) + u.k + v.(W_R r), over sqrt(K); r is sines, then cosines, of the distance."""
    apart = apart if distances.clamp is None else min(apart, distances.clamp)
    D, K = distances.content_D.shape[0], q_K.shape[0]
    mine = slice(head * K, (head + 1) * K)
    angles = [apart / 10000.0 ** (2 * i / D) for i in range(D // 2)]
    r_D = q_K.new_tensor([math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles])
    far_K = torch.stack([dot(row_D, r_D) for row_D in distances.project.weight[mine]])
    u_K, v_K = distances.content_D[mine], distances.place_D[mine]
    return (dot(q_K, k_K) + dot(q_K, far_K) + dot(u_K, k_K) + dot(v_K, far_K)) / math.sqrt(K)
