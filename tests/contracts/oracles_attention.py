"""Oracles of attention that reads positions as they are: all of them, or a pattern."""

from collections.abc import Callable

import torch
from oracle_parts import SCORES, Reading, dot, head_of, parts, project_head, projections
from torch import Tensor, nn

from allyouneed.mixers import Mixer
from allyouneed.mixers.bigbird import BigBirdConfig, draw
from allyouneed.mixers.local import Local, LocalConfig
from allyouneed.mixers.longformer import Longformer
from allyouneed.mixers.naive import attend_by_loops
from allyouneed.mixers.parts.patterned import Patterned
from allyouneed.mixers.softmax import Softmax
from allyouneed.mixers.sparse import SparseConfig
from allyouneed.mixers.window import Window


def softmax_oracle(mixer: Mixer, x_TD: Tensor, reading: Reading) -> Tensor:
    """Concat_h(softmax(score_h) V_h) W^O + b, head by head and pair by pair."""
    assert isinstance(mixer, Softmax)
    memory_SD = x_TD if reading.memory_SD is None else reading.memory_SD
    queries, keys, values = projections(mixer)
    outputs = []
    for head in range(mixer.heads):
        q_TK, k_SK, v_SR = (
            project_head(y, layer, head * heads // mixer.heads, heads)
            for y, layer, heads in (
                (x_TD, queries, mixer.heads),
                (memory_SD, keys, mixer.groups),
                (memory_SD, values, mixer.groups),
            )
        )
        if mixer.normed:
            q_TK, k_SK = rms_normed(mixer.query_norm, q_TK), rms_normed(mixer.key_norm, k_SK)

        def score(t: int, s: int, q_TK: Tensor = q_TK, k_SK: Tensor = k_SK, head: int = head) -> Tensor:
            here, there = reading.place(t), reading.place(s)
            whole = SCORES[reading.position](mixer, head, q_TK[t], k_SK[s], here, there)
            if mixer.score_cap is None:
                return whole
            # What a scheme adds to the score of two vectors is not capped.
            vectors = SCORES["rotary" if reading.position == "rotary" else "none"]
            met = vectors(mixer, head, q_TK[t], k_SK[s], here, there)
            return mixer.score_cap * torch.tanh(met / mixer.score_cap) + (whole - met)

        outputs.append(attend_by_loops(score, reading.visible, v_SR, x_TD.shape[0]))
    y_TD: Tensor = mixer.output(torch.cat(outputs, dim=-1))
    return y_TD


def rms_normed(norm: nn.RMSNorm, x_TK: Tensor) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * gamma, vector by vector   (Zhang and Sennrich 2019, equation 4)."""
    assert norm.eps is not None
    rows = [x_K / torch.sqrt(dot(x_K, x_K) / len(x_K) + norm.eps) * norm.weight for x_K in x_TK]
    return torch.stack(rows) if rows else x_TK


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
        q_TK, k_SK, v_SK = head_of(mixer.project, x_TD, reading, head)

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
        near = head_of(mixer.project, x_TD, reading, head)
        stored = [mixer.global_query, mixer.global_key_value]
        far = [project_head(x_TD, part, head, config.heads) for part in parts(stored, [mixer.project.width] * 3)]

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
        q_TK, k_SK, v_SK = head_of(mixer.project, x_TD, reading, head)

        def score(t: int, s: int, q_TK: Tensor = q_TK, k_SK: Tensor = k_SK, head: int = head) -> Tensor:
            return SCORES[reading.position](mixer, head, q_TK[t], k_SK[s], reading.place(t), reading.place(s))

        def visible(t: int, s: int, head: int = head) -> bool:
            return reading.visible(t, s) and reads(head, reading.place(t), reading.place(s))

        outputs.append(attend_by_loops(score, visible, v_SK, x_TD.shape[0]))
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
        q_TK, k_SK, v_SK = head_of(mixer.project, x_TD, reading, head)

        def score(t: int, s: int, q_TK: Tensor = q_TK, k_SK: Tensor = k_SK, head: int = head) -> Tensor:
            return SCORES[reading.position](mixer, head, q_TK[t], k_SK[s], reading.place(t), reading.place(s))

        outputs.append(attend_by_loops(score, visible, v_SK, x_TD.shape[0]))
    y_TD: Tensor = mixer.project.output(torch.cat(outputs, dim=-1))
    return y_TD
