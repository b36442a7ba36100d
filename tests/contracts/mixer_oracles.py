"""What mixers should compute, as loops over plain numbers, written from the equations of their papers.

An oracle answers for one sequence: `oracle(mixer, x_TD, reading)` gives what the mixer with these weights should give.
Of the fast code it uses nothing but the weights.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from allyouneed.mixers import Mixer, MixerConfig, Role
from allyouneed.mixers.bigbird import BigBirdConfig, draw
from allyouneed.mixers.compressive import Compressive
from allyouneed.mixers.convolution import Convolution
from allyouneed.mixers.linear import Linear
from allyouneed.mixers.linformer import Linformer
from allyouneed.mixers.local import Local, LocalConfig
from allyouneed.mixers.longformer import Longformer
from allyouneed.mixers.memory_compressed import MemoryCompressed
from allyouneed.mixers.naive import attend_by_loops, scaled_dot_product_by_loops
from allyouneed.mixers.parts.patterned import Patterned
from allyouneed.mixers.parts.projections import Projections
from allyouneed.mixers.performer import Performer
from allyouneed.mixers.recurrent import Cell, Recurrent
from allyouneed.mixers.reformer import Reformer
from allyouneed.mixers.softmax import Softmax
from allyouneed.mixers.sparse import SparseConfig
from allyouneed.mixers.window import Window
from allyouneed.mixers.xl import XL, Distances
from allyouneed.positions import Alibi, Rotary, Shaw, T5Bias


@dataclass(frozen=True)
class Reading:
    """Who is read in one sequence, and how."""

    role: Role
    position: str  # the scheme inside the score, or "none"
    valid: Sequence[bool]  # of the slots that are read
    memory_SD: Tensor | None = None  # what a cross mixer reads; None: the sequence itself

    def visible(self, t: int, s: int) -> bool:
        """A padded slot is never read; a causal mixer reads nothing that comes later."""
        return self.valid[s] and (self.role != "causal" or s <= t)

    def place(self, s: int) -> int:
        """The position of a slot: how many real ones stand before it."""
        return sum(self.valid[:s])


@dataclass(frozen=True)
class Oracle:
    """A naive reference, and how near the mechanism comes to it.

    An approximation also names what it approximates, and a finer setting that must come nearer than its small one.
    """

    run: Callable[[Mixer, Tensor, Reading], Tensor]
    tolerance: float = 1e-10
    approximates: Callable[[Mixer, Tensor, Reading], Tensor] | None = None
    finer: MixerConfig | None = None


def softmax_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """Concat_h(softmax(score_h) V_h) W^O + b, head by head and pair by pair."""
    assert isinstance(mixer, Softmax)
    memory_SD = x_TD if reading.memory_SD is None else reading.memory_SD
    queries, keys, values = _projections(mixer)
    outputs = []
    for head in range(mixer.heads):
        q_TK, k_SK, v_SR = (
            _project(y, layer, head * heads // mixer.heads, heads)
            for y, layer, heads in (
                (x_TD, queries, mixer.heads),
                (memory_SD, keys, mixer.groups),
                (memory_SD, values, mixer.groups),
            )
        )

        def score(t: int, s: int, q_TK: Tensor = q_TK, k_SK: Tensor = k_SK, head: int = head) -> Tensor:
            here, there = reading.place(t), reading.place(s)
            return SCORES[reading.position](mixer, head, q_TK[t], k_SK[s], here, there)

        outputs.append(attend_by_loops(score, reading.visible, v_SR, x_TD.shape[0]))
    y_TD: Tensor = mixer.output(torch.cat(outputs, dim=-1))
    return y_TD


def window_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """Multi-head attention in which only near positions are visible   (Beltagy et al. 2020, section 3.1)."""
    assert isinstance(mixer, Window)
    config = mixer.config

    def visible(t: int, s: int) -> bool:
        apart = reading.place(t) - reading.place(s)
        near = abs(apart) <= config.window * config.dilation and apart % config.dilation == 0
        return near and reading.visible(t, s)

    outputs = []
    for head in range(config.heads):
        q_TK, k_SK, v_SK = _head_of(mixer.project, x_TD, reading, head)

        def score(t: int, s: int, q_TK: Tensor = q_TK, k_SK: Tensor = k_SK, head: int = head) -> Tensor:
            return SCORES[reading.position](mixer, head, q_TK[t], k_SK[s], reading.place(t), reading.place(s))

        outputs.append(attend_by_loops(score, visible, v_SK, x_TD.shape[0]))
    y_TD: Tensor = mixer.project.output(torch.cat(outputs, dim=-1))
    return y_TD


def longformer_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """A window and global positions, with projections of their own   (Beltagy et al. 2020, section 3.1)."""
    assert isinstance(mixer, Longformer)
    config = mixer.config
    outputs = []
    for head in range(config.heads):
        near = _head_of(mixer.project, x_TD, reading, head)
        stored = [mixer.global_query, mixer.global_key_value]
        far = [_project(x_TD, part, head, config.heads) for part in _parts(stored, [mixer.project.width] * 3)]

        def is_global(t: int) -> bool:
            return reading.place(t) < config.everywhere

        def visible(t: int, s: int) -> bool:
            close = abs(reading.place(t) - reading.place(s)) <= config.window
            return reading.valid[s] and (is_global(t) or is_global(s) or close)

        rows = []
        for t in range(x_TD.shape[0]):
            q_TK, k_SK, v_SK = far if is_global(t) else near

            def score(_: int, s: int, t: int = t, q_TK: Tensor = q_TK, k_SK: Tensor = k_SK, head: int = head) -> Tensor:
                return SCORES[reading.position](mixer, head, q_TK[t], k_SK[s], reading.place(t), reading.place(s))

            rows.append(attend_by_loops(score, lambda _, s, t=t: visible(t, s), v_SK, 1)[0])  # type: ignore[misc]
        outputs.append(torch.stack(rows))
    y_TD: Tensor = mixer.project.output(torch.cat(outputs, dim=-1))
    return y_TD


def bigbird_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """Blocks that read neighbours, global blocks and drawn ones   (Zaheer et al. 2020, section 2 and appendix D)."""
    assert isinstance(mixer, Patterned)
    config = mixer.config
    assert isinstance(config, BigBirdConfig)
    last = (sum(reading.valid) - 1) // config.block

    def reads(head: int, i: int, j: int) -> bool:
        """Whether block i reads block j: of the drawn ones only their numbers are taken from the code under test."""
        if abs(i - j) <= 1 or j < config.globals:
            return True
        if reading.role == "causal":
            others = [o for o in range(config.globals, i) if o < i - 1]
        elif i < config.globals or last in (i, j):
            return True
        else:
            others = [o for o in range(config.globals, last) if abs(o - i) > 1]
        return j in [others[number] for number in draw(config, i, len(others))[head].tolist()]

    return _read_by_loops(mixer, x_TD, reading, lambda head, t, s: reads(head, t // config.block, s // config.block))


def sparse_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """The union of two sets, A1 and A2   (Child et al. 2019, section 4.3 and equation 7)."""
    assert isinstance(mixer, Patterned)
    config = mixer.config
    assert isinstance(config, SparseConfig)
    stride = config.stride

    def strided(head: int, t: int, s: int) -> bool:
        return abs(t - s) < stride or (t - s) % stride == 0

    def fixed(head: int, t: int, s: int) -> bool:
        assert config.summaries is not None
        return t // stride == s // stride or s % stride in range(stride - config.summaries, stride)

    return _read_by_loops(mixer, x_TD, reading, strided if config.pattern == "strided" else fixed)


def _read_by_loops(mixer: Patterned, x_TD: Tensor, reading: Reading, reads: Callable[[int, int, int], bool]) -> Tensor:
    """Multi-head attention in which head h at place t reads the places s that `reads(h, t, s)` allows."""
    outputs = []
    for head in range(mixer.config.heads):
        q_TK, k_SK, v_SK = _head_of(mixer.project, x_TD, reading, head)

        def score(t: int, s: int, q_TK: Tensor = q_TK, k_SK: Tensor = k_SK, head: int = head) -> Tensor:
            return SCORES[reading.position](mixer, head, q_TK[t], k_SK[s], reading.place(t), reading.place(s))

        def visible(t: int, s: int, head: int = head) -> bool:
            return reading.visible(t, s) and reads(head, reading.place(t), reading.place(s))

        outputs.append(attend_by_loops(score, visible, v_SK, x_TD.shape[0]))
    y_TD: Tensor = mixer.project.output(torch.cat(outputs, dim=-1))
    return y_TD


def linear_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """Weights phi(q) . phi(k) / sum, phi = elu + 1, pair by pair   (Katharopoulos et al. 2020, equation 4)."""
    assert isinstance(mixer, Linear)

    def weight(head: int, q_K: Tensor, k_K: Tensor) -> Tensor:
        return _dot(_elu_and_one(q_K), _elu_and_one(k_K))

    return _weigh_by_loops(mixer.project, x_TD, reading, weight)


def _elu_and_one(x_K: Tensor) -> Tensor:
    return torch.stack([x + 1 if x > 0 else torch.exp(x) for x in x_K])


def performer_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """Weights phi(q) . phi(k), phi(x)_m = exp(w_m . x' - |x'|^2 / 2)   (Choromanski et al. 2021, lemma 1)."""
    assert isinstance(mixer, Performer)

    def features(head: int, x_K: Tensor) -> Tensor:
        x_K = x_K / x_K.shape[0] ** 0.25
        return torch.stack([torch.exp(_dot(w_K, x_K) - _dot(x_K, x_K) / 2) for w_K in mixer.direction_HMK[head]])

    def weight(head: int, q_K: Tensor, k_K: Tensor) -> Tensor:
        return _dot(features(head, q_K), features(head, k_K))

    return _weigh_by_loops(mixer.project, x_TD, reading, weight)


def softmax_of_projections(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """What a performer estimates: weights exp(q . k / sqrt(K))."""
    assert isinstance(mixer, Performer)

    def weight(head: int, q_K: Tensor, k_K: Tensor) -> Tensor:
        return torch.exp(_dot(q_K, k_K) / math.sqrt(q_K.shape[0]))

    return _weigh_by_loops(mixer.project, x_TD, reading, weight)


def _weigh_by_loops(
    project: Projections, x_TD: Tensor, reading: Reading, weight: Callable[[int, Tensor, Tensor], Tensor]
) -> Tensor:
    outputs = []
    for head in range(project.heads):
        q_TK, k_SK, v_SK = _head_of(project, x_TD, reading, head)
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
        q_TK, k_SK, v_SK = _head_of(mixer.project, x_TD, reading, head)
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


def local_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """Multi-head attention in which only the own block is visible   (Liu et al. 2018, section 4.2.4)."""
    if isinstance(mixer, Patterned):  # and some blocks before it
        config = mixer.config
        assert isinstance(config, LocalConfig)
        size, before = config.block, config.before
        return _read_by_loops(mixer, x_TD, reading, lambda _, t, s: 0 <= t // size - s // size <= before)
    assert isinstance(mixer, Local)
    config = mixer.config

    def visible(t: int, s: int) -> bool:
        return reading.place(t) // config.block == reading.place(s) // config.block and reading.visible(t, s)

    outputs = []
    for head in range(config.heads):
        q_TK, k_SK, v_SK = _head_of(mixer.project, x_TD, reading, head)

        def score(t: int, s: int, q_TK: Tensor = q_TK, k_SK: Tensor = k_SK, head: int = head) -> Tensor:
            return SCORES[reading.position](mixer, head, q_TK[t], k_SK[s], reading.place(t), reading.place(s))

        outputs.append(attend_by_loops(score, visible, v_SK, x_TD.shape[0]))
    y_TD: Tensor = mixer.project.output(torch.cat(outputs, dim=-1))
    return y_TD


def xl_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """Scores of four terms over the memory before each position   (Dai et al. 2019, section 3.3)."""
    assert isinstance(mixer, XL)

    def visible(t: int, s: int) -> bool:
        return reading.visible(t, s) and reading.place(t) - reading.place(s) <= mixer.config.memory

    outputs = []
    for head in range(mixer.config.heads):
        q_TK, k_SK, v_SK = _head_of(mixer.project, x_TD, reading, head)

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
    ends = [0, *(reading.place(slot[-1]) for slot in members)]  # where slots stand; the null slot at 0

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
        q_TK, k_SK, v_SK = _head_of(mixer.project, x_TD, reading, head)
        key_slots, value_slots = slots(k_SK, 0, head), slots(v_SK, 1, head)

        def score(t: int, j: int, q_TK: Tensor = q_TK, keys: Tensor = key_slots, head: int = head) -> Tensor:
            return SCORES[reading.position](mixer, head, q_TK[t], keys[j], reading.place(t), ends[j])

        outputs.append(attend_by_loops(score, visible, value_slots, x_TD.shape[0]))
    y_TD: Tensor = mixer.project.output(torch.cat(outputs, dim=-1))
    return y_TD


def reformer_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """softmax over the nearest members of one's bucket in any round   (Kitaev et al. 2020, equations 2, 3 and 7).

    Its own place is read by whom nobody else is visible to. Of each bucket, `chunk` members before (and after) count.
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
                    sides = [_dot(x_K, column_K).item() for column_K in hashing]
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
    """What hashing approximates: everybody but oneself is read   (Kitaev et al. 2020, section 2)."""
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
        q_TK, v_TK = (_project(x_TD, both, head, heads) for both in zip(weights, biases, strict=True))
        seen = visible(head, q_TK)

        def score(t: int, s: int, q_TK: Tensor = q_TK, head: int = head) -> Tensor:
            k_K = q_TK[s] / torch.sqrt(_dot(q_TK[s], q_TK[s]) / q_TK.shape[1] + 1e-6)
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
            q_TK, k_SK, v_SK = _head_of(mixer.project, line_TD, alone, head)

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
            [_dot(row, flat) + b for row, b in zip(mixer.compress.weight, mixer.compress.bias, strict=True)]
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
    far_K = torch.stack([_dot(row_D, r_D) for row_D in distances.project.weight[mine]])
    u_K, v_K = distances.content_D[mine], distances.place_D[mine]
    return (_dot(q_K, k_K) + _dot(q_K, far_K) + _dot(u_K, k_K) + _dot(v_K, far_K)) / math.sqrt(K)


def _head_of(project: Projections, x_TD: Tensor, reading: Reading, head: int) -> tuple[Tensor, ...]:
    """Queries, keys and values of one head."""
    memory_SD = x_TD if reading.memory_SD is None else reading.memory_SD
    return tuple(
        _project(y, layer, head, project.heads)
        for y, layer in zip((x_TD, memory_SD, memory_SD), _matrices(project, [project.width] * 3), strict=True)
    )


Projection = tuple[Tensor, Tensor | None]


def _projections(mixer: Softmax) -> tuple[Projection, Projection, Projection]:
    return _matrices(mixer, [mixer.queries, mixer.keys, mixer.values])


def _matrices(owner: Softmax | Projections, rows: list[int]) -> tuple[Projection, Projection, Projection]:
    """Weight and bias of W^Q, W^K and W^V, however they are stored."""
    stored = [owner.query, owner.key_value] if hasattr(owner, "query") else [owner.query_key_value]
    return _parts(stored, rows)


def _parts(stored: list[nn.Linear], rows: list[int]) -> tuple[Projection, Projection, Projection]:
    weight_ND = torch.cat([layer.weight for layer in stored])
    weights = torch.split(weight_ND, rows)
    biases: Sequence[Tensor | None] = [None] * 3
    if stored[0].bias is not None:
        biases = torch.split(torch.cat([layer.bias for layer in stored]), rows)
    query, key, value = zip(weights, biases, strict=True)
    return query, key, value


def _project(y: Tensor, projection: Projection, head: int, heads: int) -> Tensor:
    """The rows of one head: head h owns the h-th part of a projection's outputs."""
    weight, bias = projection
    size = weight.shape[0] // heads
    part = slice(head * size, (head + 1) * size)
    return nn.functional.linear(y, weight[part], None if bias is None else bias[part])


# Mixers with a score in which positions act.
Scored = Softmax | Window | Longformer | Patterned | Local | MemoryCompressed | Reformer


def _dot(a_K: Tensor, b_K: Tensor) -> Tensor:
    total = a_K.new_zeros(())
    for i in range(a_K.shape[0]):
        total = total + a_K[i] * b_K[i]
    return total


def plain_score(mixer: Scored, head: int, q_K: Tensor, k_K: Tensor, here: int, there: int) -> Tensor:
    """q . k / sqrt(K)   (Vaswani et al. 2017, equation 1)."""
    return _dot(q_K, k_K) / math.sqrt(q_K.shape[0])


def shaw_score(mixer: Scored, head: int, q_K: Tensor, k_K: Tensor, here: int, there: int) -> Tensor:
    """q . (k + a_clip(there - here)) / sqrt(K)   (Shaw et al. 2018, equations 4 and 5)."""
    assert isinstance(mixer.position, Shaw)
    clip = mixer.position.clip
    distance = max(-clip, min(clip, there - here))
    return _dot(q_K, k_K + mixer.position.distance_RK[distance + clip]) / math.sqrt(q_K.shape[0])


def t5_score(mixer: Scored, head: int, q_K: Tensor, k_K: Tensor, here: int, there: int) -> Tensor:
    """q . k / sqrt(K) + b[bucket(there - here), head]   (Raffel et al. 2020, section 2.1)."""
    position = mixer.position
    assert isinstance(position, T5Bias)
    bucket = t5_bucket(there - here, position.buckets, position.max_distance, position.causal)
    return plain_score(mixer, head, q_K, k_K, here, there) + position.bias_RH[bucket, head]


def t5_bucket(distance: int, buckets: int, max_distance: int, causal: bool) -> int:
    """Half of the buckets are single distances, half logarithmic up to max_distance; if not causal, for each side."""
    base = 0
    if causal:
        apart = max(0, -distance)
    else:
        buckets //= 2
        base = buckets if distance > 0 else 0
        apart = abs(distance)
    exact = buckets // 2
    if apart < exact:
        return base + apart
    fraction = math.log(apart / exact) / math.log(max_distance / exact)
    return base + min(buckets - 1, exact + math.floor(fraction * (buckets - exact) + 1e-9))


def alibi_score(mixer: Scored, head: int, q_K: Tensor, k_K: Tensor, here: int, there: int) -> Tensor:
    """q . k / sqrt(K) - m |here - there|,  m = 2^(-8 h / H), h from 1   (Press et al. 2022, section 3)."""
    assert isinstance(mixer.position, Alibi)
    slope: float = 2.0 ** (-8.0 * (head + 1) / len(mixer.position.slope_H))
    return plain_score(mixer, head, q_K, k_K, here, there) - slope * abs(here - there)


def rotary_score(mixer: Scored, head: int, q_K: Tensor, k_K: Tensor, here: int, there: int) -> Tensor:
    """Re(sum_i q_i conj(k_i) exp(i (here - there) / base^(2i/K))) / sqrt(K), features as complex numbers.

    The paper's equation 16 in the complex form of its section 3.2.1; q_i = q[i] + 1j q[i + K/2].
    """
    assert isinstance(mixer.position, Rotary)
    K = q_K.shape[0]
    total = q_K.new_zeros(())
    for i in range(K // 2):
        angle = (here - there) * 10000.0 ** (-2 * i / K)
        real = q_K[i] * k_K[i] + q_K[i + K // 2] * k_K[i + K // 2]
        imaginary = q_K[i + K // 2] * k_K[i] - q_K[i] * k_K[i + K // 2]
        total = total + real * math.cos(angle) - imaginary * math.sin(angle)
    return total / math.sqrt(K)


SCORES: dict[str, Callable[[Scored, int, Tensor, Tensor, int, int], Tensor]] = {
    "none": plain_score,
    "shaw": shaw_score,
    "t5": t5_score,
    "alibi": alibi_score,
    "rotary": rotary_score,
}


def convolution_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """b + sum_j W_j x, over the real positions that stand j dilations apart; nothing stands beyond the ends."""
    assert isinstance(mixer, Convolution)
    kernel, dilation = mixer.taps.kernel, mixer.taps.dilation
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
    """One position after the other; at padding nothing happens, and zeros stand for what it gives."""
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
