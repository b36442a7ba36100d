"""The contract of a mixer (`allyouneed/mixers/base.py`), clause by clause, over the whole table MIXERS.

A new mechanism adds a line to SMALL and a line to ORACLES; everything here then applies to it in every role that it
declares and with every position scheme that it accepts.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mixer_oracles import (
    Oracle,
    Reading,
    bigbird_oracle,
    compressive_oracle,
    convolution_oracle,
    full_shared_query_key,
    linear_oracle,
    linformer_oracle,
    local_oracle,
    longformer_oracle,
    memory_compressed_oracle,
    performer_oracle,
    recurrent_oracle,
    reformer_oracle,
    softmax_of_projections,
    softmax_oracle,
    sparse_oracle,
    window_oracle,
    xl_oracle,
)
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from allyouneed.block import Block, BlockConfig
from allyouneed.errors import ConfigError
from allyouneed.mixers import MIXERS, Cost, Memory, Mixer, MixerConfig, Role, State, select_rows
from allyouneed.mixers.bigbird import BigBirdConfig
from allyouneed.mixers.compressive import CompressiveConfig
from allyouneed.mixers.convolution import ConvolutionConfig
from allyouneed.mixers.linear import LinearConfig
from allyouneed.mixers.linformer import LinformerConfig
from allyouneed.mixers.local import LocalConfig
from allyouneed.mixers.longformer import LongformerConfig
from allyouneed.mixers.memory_compressed import MemoryCompressedConfig
from allyouneed.mixers.performer import PerformerConfig
from allyouneed.mixers.recurrent import GruConfig, LstmConfig, RnnConfig
from allyouneed.mixers.reformer import ReformerConfig
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.mixers.sparse import SparseConfig
from allyouneed.mixers.window import WindowConfig
from allyouneed.mixers.xl import XLConfig
from allyouneed.positions import POSITIONS, AlibiConfig, PositionConfig, SinusoidalConfig
from helpers import tensors_of

WIDTH = 12

# The first setting also has to learn; the others are variations of the same mechanism.
SMALL: dict[str, list[MixerConfig]] = {
    "softmax": [
        SoftmaxConfig(heads=3),
        SoftmaxConfig(heads=1, bias=False),
        SoftmaxConfig(heads=5, key_width=2, value_width=3),
        SoftmaxConfig(heads=6, key_heads=2),
        SoftmaxConfig(heads=4, key_heads=1, key_width=4, value_width=2, bias=False),
    ],
    "window": [
        WindowConfig(heads=3, window=12),
        WindowConfig(heads=3, window=3),
        WindowConfig(heads=2, window=2, dilation=3, bias=False),
        WindowConfig(heads=1, window=1),
    ],
    "longformer": [
        LongformerConfig(heads=3, window=4, everywhere=2),
        LongformerConfig(heads=2, window=1, everywhere=1, bias=False),
        LongformerConfig(heads=2, window=2, everywhere=3),
        LongformerConfig(heads=3, window=2, everywhere=0),
    ],
    "bigbird": [
        BigBirdConfig(heads=3, block=2, random=2, seed=1),
        BigBirdConfig(heads=2, block=1, globals=2, random=1, bias=False),
        BigBirdConfig(heads=1, block=3, random=0),
        BigBirdConfig(heads=2, block=64),
    ],
    "sparse": [
        SparseConfig(heads=3, pattern="fixed", stride=3, summaries=2),
        SparseConfig(heads=3, pattern="strided", stride=3),
        SparseConfig(heads=2, pattern="fixed", stride=4, summaries=1, bias=False),
        SparseConfig(heads=1, pattern="fixed", stride=2, summaries=2),
        SparseConfig(heads=2, pattern="strided", stride=1),
        SparseConfig(heads=2, pattern="strided", stride=8),
    ],
    "linear": [LinearConfig(heads=3), LinearConfig(heads=2, bias=False)],
    "performer": [PerformerConfig(heads=3, features=9), PerformerConfig(heads=1, features=30, bias=False)],
    "linformer": [
        LinformerConfig(heads=3, slots=4, max_length=40),
        LinformerConfig(heads=2, slots=3, max_length=40, share="key-value"),
        LinformerConfig(heads=2, slots=3, max_length=40, share="none", bias=False),
    ],
    "local": [
        LocalConfig(heads=3, block=13),
        LocalConfig(heads=2, block=3, bias=False),
        LocalConfig(heads=1, block=2),
        LocalConfig(heads=3, block=3, before=1),
        LocalConfig(heads=2, block=2, before=2, bias=False),
    ],
    "memory-compressed": [
        MemoryCompressedConfig(heads=3, stride=2),
        MemoryCompressedConfig(heads=2, stride=3, bias=False),
        MemoryCompressedConfig(heads=1, stride=1),
    ],
    "reformer": [
        ReformerConfig(heads=3, buckets=2, rounds=3, chunk=12),
        ReformerConfig(heads=2, buckets=(2, 4), rounds=2, chunk=2),
        ReformerConfig(heads=2, buckets=6, rounds=1, chunk=1, bias=False),
    ],
    "xl": [XLConfig(heads=3, memory=12), XLConfig(heads=2, memory=3, clamp=2, bias=False), XLConfig(heads=1, memory=1)],
    "compressive": [
        CompressiveConfig(heads=3, memory=8, compressed=4, rate=2),
        CompressiveConfig(heads=2, memory=1, compressed=2, rate=2, clamp=3, bias=False),
        CompressiveConfig(heads=1, memory=1, compressed=1, rate=1, compression="mean"),
        CompressiveConfig(heads=2, memory=2, compressed=0, rate=3, compression="max"),
    ],
    "rnn": [RnnConfig()],
    "lstm": [LstmConfig()],
    "gru": [GruConfig()],
    "convolution": [
        ConvolutionConfig(kernel=9),
        ConvolutionConfig(kernel=3),
        ConvolutionConfig(kernel=2, dilation=3),
        ConvolutionConfig(kernel=4),
    ],
}
ORACLES: dict[str, Oracle] = {
    "softmax": Oracle(softmax_oracle),
    "window": Oracle(window_oracle),
    "longformer": Oracle(longformer_oracle),
    "bigbird": Oracle(bigbird_oracle),
    "sparse": Oracle(sparse_oracle),
    "linear": Oracle(linear_oracle),
    "performer": Oracle(
        performer_oracle, approximates=softmax_of_projections, finer=PerformerConfig(heads=3, features=3000)
    ),
    "linformer": Oracle(linformer_oracle),
    "local": Oracle(local_oracle),
    "memory-compressed": Oracle(memory_compressed_oracle),
    "reformer": Oracle(
        reformer_oracle,
        approximates=full_shared_query_key,
        finer=ReformerConfig(heads=3, buckets=2, rounds=24, chunk=12),
    ),
    "xl": Oracle(xl_oracle),
    "compressive": Oracle(compressive_oracle),
    "rnn": Oracle(recurrent_oracle),
    "lstm": Oracle(recurrent_oracle),
    "gru": Oracle(recurrent_oracle),
    "convolution": Oracle(convolution_oracle),
}
# Settings in which a short sequence meets every branch: clipped distances, logarithmic buckets.
SMALL_POSITIONS: dict[str, dict[str, Any]] = {"shaw": {"clip": 2}, "t5": {"buckets": 8, "max_distance": 5}}

LEARNING_RATE = 8e-3  # at which copying is learnt from any seed in so many steps; half of it is not enough
STEPS = dict.fromkeys(
    ("softmax", "window", "longformer", "bigbird", "sparse", "local", "xl", "compressive", "reformer"), 150
)
STEPS |= dict.fromkeys(
    ("linear", "performer", "linformer", "memory-compressed", "rnn", "lstm", "gru", "convolution"), 400
)
BY_CONTENT = {"reformer"}  # who reads whom depends on what they hold, so the declared path is that of some inputs
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True)
class Case:
    """One mixer in one role with one position scheme."""

    name: str
    config: MixerConfig
    role: Role
    position: str

    def position_config(self) -> PositionConfig:
        return POSITIONS[self.position].model_validate(SMALL_POSITIONS.get(self.position, {}))

    def build(self, dtype: torch.dtype = torch.float64) -> Mixer:
        """The mixer with random numbers in every parameter: biases and tables that begin at zero could hide errors."""
        position = self.config.build_position(self.position_config(), WIDTH, self.role)
        mixer = self.config.build(WIDTH, role=self.role, position=position).to(dtype)
        with torch.no_grad():
            for parameter in mixer.parameters():
                parameter.normal_(std=0.4)
        return mixer

    def __str__(self) -> str:
        variant = SMALL[self.name].index(self.config)
        return f"{self.name}{variant}-{self.role}-{self.position}"


SCORED = [name for name, cls in POSITIONS.items() if cls.model_validate({}).build_score(2, 2, True) is not None]


def _schemes(config: MixerConfig, role: Role) -> list[str]:
    """The position schemes under which a mixer is tried: all of them for its first setting, two for its variations."""
    if not config.takes_positions or role == "cross":
        return ["none"]
    return ["none", *(SCORED if config == SMALL[config.type][0] else ["shaw", "rotary"])]


CASES = [
    Case(name, config, role, position)
    for name, configs in SMALL.items()
    for config in configs
    for role in ROLES
    if role in config.roles
    for position in _schemes(config, role)
]


every_case = pytest.mark.parametrize("case", CASES, ids=str)
causal_cases = pytest.mark.parametrize("case", [c for c in CASES if c.role == "causal"], ids=str)
self_cases = pytest.mark.parametrize("case", [c for c in CASES if c.role != "cross"], ids=str)
cross_cases = pytest.mark.parametrize("case", [c for c in CASES if c.role == "cross"], ids=str)
seeds = st.integers(0, 2**31)
few = settings(max_examples=10)


def run(mixer: Mixer, x_BTD: Tensor, read: "Read") -> tuple[Tensor, State]:
    """The mixer on whole sequences: a self mixer reads `x`, a cross mixer the memory; validity is of what is read."""
    if read.memory_BSD is None:
        return mixer(x_BTD, mask_BT=read.valid)
    return mixer(x_BTD, memory=Memory(read.memory_BSD, read.valid))


@dataclass(frozen=True)
class Read:
    memory_BSD: Tensor | None = None
    valid: Tensor | None = None


def inputs(case: Case, B: int = 2, T: int = 7, S: int = 5) -> tuple[Tensor, Tensor | None]:
    """Random queries, and a memory if the role needs one; float64, with gradients."""
    x_BTD = torch.randn(B, T, WIDTH, dtype=torch.float64, requires_grad=True)
    if case.role != "cross":
        return x_BTD, None
    return x_BTD, torch.randn(B, S, WIDTH, dtype=torch.float64, requires_grad=True)


def test_every_mixer_is_under_contract() -> None:
    assert set(MIXERS) == set(SMALL) == set(ORACLES) == set(STEPS)
    for name, configs in SMALL.items():
        assert configs
        assert all(type(config) is MIXERS[name] for config in configs)


# Clause 1: shape kept; equal to its naive oracle, forward and gradient, in float64.


@pytest.mark.no_shapes  # the loops return too often; the clauses below run the same code under the check
@every_case
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_equals_its_oracle(case: Case, padded: bool) -> None:
    mixer = case.build()
    x_BTD, memory_BSD = inputs(case, T=5, S=4)
    read_length = x_BTD.shape[1] if memory_BSD is None else memory_BSD.shape[1]
    mask_BS = torch.ones(2, read_length, dtype=torch.bool)
    if padded:
        mask_BS[0, 0] = mask_BS[1, 2:4] = False
    y_BTD, _ = run(mixer, x_BTD, Read(memory_BSD, mask_BS if padded else None))
    assert y_BTD.shape == x_BTD.shape

    rows = []
    for b in range(2):
        memory_SD = None if memory_BSD is None else memory_BSD[b]
        reading = Reading(case.role, case.position, mask_BS[b].tolist(), memory_SD)
        rows.append(ORACLES[case.name].run(mixer, x_BTD[b], reading))
    # What a padded position itself gives is of no interest to anybody.
    counts = mask_BS if memory_BSD is None else torch.ones(x_BTD.shape[:2], dtype=torch.bool)
    sources = [x for x in (x_BTD, memory_BSD, *mixer.parameters()) if x is not None]
    _assert_close_with_gradients(y_BTD[counts], torch.stack(rows)[counts], sources, ORACLES[case.name].tolerance)


def _assert_close_with_gradients(ours: Tensor, theirs: Tensor, sources: list[Tensor], tolerance: float) -> None:
    close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    close(ours, theirs)
    noise = torch.randn_like(theirs)
    # A weight that learns by a loss of its own has no gradient here.
    gradient = partial(torch.autograd.grad, inputs=sources, grad_outputs=noise, materialize_grads=True)
    close(gradient(ours), gradient(theirs))


@pytest.mark.parametrize("name", [name for name, oracle in ORACLES.items() if oracle.finer is not None])
def test_a_finer_approximation_comes_nearer(name: str) -> None:
    oracle = ORACLES[name]
    assert oracle.finer is not None
    assert oracle.approximates is not None
    errors = []
    for config in (SMALL[name][0], oracle.finer):
        case = Case(name, config, "bidirectional" if "bidirectional" in config.roles else "causal", "none")
        error = 0.0
        for _ in range(5):
            mixer, x_BTD = case.build(), inputs(case, B=1)[0]
            y_TD = oracle.approximates(mixer, x_BTD[0], Reading(case.role, "none", [True] * 7))
            error += float((mixer(x_BTD)[0][0] - y_TD).detach().norm())
        errors.append(error)
    assert errors[1] < 0.75 * errors[0]


@pytest.mark.parametrize("case", [c for c in CASES if c.position == "none"], ids=str)
def test_half_precision_gives_nearly_the_same(case: Case) -> None:
    """Under autocast, forward and backward: sums over a sequence are not rounded away."""
    mixer = case.build(torch.float32)
    x_BTD, memory_BSD = (None if x is None else x.detach().float() for x in inputs(case))
    assert x_BTD is not None
    x_BTD.requires_grad_()
    with torch.no_grad():
        whole_BTD, _ = run(mixer, x_BTD, Read(memory_BSD))
    with torch.autocast("cpu", torch.bfloat16):
        y_BTD, _ = run(mixer, x_BTD, Read(memory_BSD))
    (gradient_BTD,) = torch.autograd.grad(y_BTD.float().square().sum(), x_BTD)
    assert gradient_BTD.isfinite().all()
    assert float((y_BTD.detach().float() - whole_BTD).norm() / whole_BTD.norm()) < 0.15


# Clause 2: causal: the future changes nothing, and any chunking through `state` equals the whole.


@causal_cases
@few
@given(seed=seeds, length=st.integers(2, 9), data=st.data())
def test_the_future_changes_nothing(case: Case, seed: int, length: int, data: st.DataObject) -> None:
    torch.manual_seed(seed)
    cut = data.draw(st.integers(1, length - 1), label="first changed position")
    mixer = case.build()
    x_BTD = torch.randn(2, length, WIDTH, dtype=torch.float64)
    other_BTD = torch.cat([x_BTD[:, :cut], torch.randn_like(x_BTD[:, cut:])], dim=1)
    with torch.no_grad():
        y_BTD, z_BTD = mixer(x_BTD)[0], mixer(other_BTD)[0]
    torch.testing.assert_close(y_BTD[:, :cut], z_BTD[:, :cut], rtol=1e-12, atol=1e-12)
    # A text shorter than a slot has nothing to read; who reads others only may find a single one, and then gives its
    # value whatever itself holds.
    blind = case.name in BY_CONTENT or (case.name == "memory-compressed" and _cost(case, length).path is None)
    assert blind or not torch.equal(y_BTD[:, cut:], z_BTD[:, cut:])


@causal_cases
@few
@given(
    seed=seeds,
    chunks=st.lists(st.integers(1, 4), min_size=1, max_size=5) | st.just([1] * 20),
    padded=st.booleans(),
    gradients=st.booleans(),
)
def test_any_chunking_equals_the_whole(case: Case, seed: int, chunks: list[int], padded: bool, gradients: bool) -> None:
    torch.manual_seed(seed)
    mixer, length = case.build(), sum(chunks)
    x_BTD = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=gradients)
    mask_BT = torch.rand(2, length) < 0.7 if padded else None
    with torch.set_grad_enabled(gradients):
        whole_BTD, _ = mixer(x_BTD, mask_BT=mask_BT)
        pieces, state = [], None
        starts = [sum(chunks[:i]) for i in range(len(chunks))]
        for start, size in zip(starts, chunks, strict=True):
            now = slice(start, start + size)
            piece_BTD, state = mixer(x_BTD[:, now], mask_BT=None if mask_BT is None else mask_BT[:, now], state=state)
            pieces.append(piece_BTD)
    chunked_BTD = torch.cat(pieces, dim=1)
    counts = torch.ones(2, length, dtype=torch.bool) if mask_BT is None else mask_BT
    torch.testing.assert_close(chunked_BTD[counts], whole_BTD[counts], rtol=1e-10, atol=1e-10)
    if gradients and counts.any():
        sources = [x_BTD, *mixer.parameters()]
        _assert_close_with_gradients(chunked_BTD[counts], whole_BTD[counts], sources, 1e-9)


@pytest.mark.parametrize("case", [c for c in CASES if c.role != "bidirectional"], ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_advancing_by_single_positions_equals_the_whole(case: Case, padded: bool) -> None:
    """From the first position on, and after a beginning that may be padded."""
    mixer = case.build()
    x_BTD, memory_BSD = inputs(case, B=4, T=9)
    valid = masks(4, 3, 2) if padded else None  # of the memory, or of the first five positions
    memory, begin, state = None, 0, None
    with torch.no_grad():
        if memory_BSD is not None:
            memory = Memory(memory_BSD, valid)
            whole_BTD, _ = mixer(x_BTD, memory=memory)
        elif valid is not None:
            begin = 5
            whole_BTD, _ = mixer(x_BTD, mask_BT=torch.cat([valid, torch.ones_like(valid[:, :4])], dim=1))
            _, state = mixer(x_BTD[:, :begin], mask_BT=valid)
        else:
            whole_BTD, _ = mixer(x_BTD)
        for t in range(begin, 9):
            y_BD, state = mixer.advance(x_BTD[:, t], state=state, memory=memory)
            torch.testing.assert_close(y_BD, whole_BTD[:, t], rtol=1e-10, atol=1e-10)


@causal_cases
@pytest.mark.parametrize("gradients", [False, True], ids=["without gradients", "with gradients"])
def test_states_are_values(case: Case, gradients: bool) -> None:
    """Going on from an old state any number of times, in any order, gives the same answers."""
    mixer = case.build()
    x_BTD = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    with torch.set_grad_enabled(gradients):
        whole_BTD, _ = mixer(x_BTD)
        states = [None]
        for t in range(9):
            states.append(mixer(x_BTD[:, t : t + 1], state=states[-1])[1])
            mixer(torch.randn(2, 3, WIDTH, dtype=torch.float64), state=states[-1])  # another future
        for t in [5, 0, 8, 3, 5]:
            rest_BTD, _ = mixer(x_BTD[:, t:], state=states[t])
            torch.testing.assert_close(rest_BTD, whole_BTD[:, t:], rtol=1e-10, atol=1e-10)


# Clause 3: padding (wherever it stands) and the other rows of a batch change nothing; a padded row gives no NaN.


def scatter(x_BTD: Tensor, mask_BS: Tensor) -> Tensor:
    """Large garbage with the vectors of `x` at the real slots."""
    wide_BSD = torch.randn(*mask_BS.shape, WIDTH, dtype=torch.float64) * 100
    wide_BSD[mask_BS] = x_BTD.flatten(0, 1)
    return wide_BSD


def masks(rows: int, real: int, extra: int) -> Tensor:
    """In each row `real` real slots and `extra` padded ones, in random places."""
    return torch.stack([torch.randperm(real + extra) < real for _ in range(rows)])


@self_cases
@few
@given(seed=seeds, real=st.integers(1, 6), extra=st.integers(1, 4))
def test_padding_anywhere_changes_nothing(case: Case, seed: int, real: int, extra: int) -> None:
    torch.manual_seed(seed)
    mixer, x_BTD, mask_BS = case.build(), torch.randn(3, real, WIDTH, dtype=torch.float64), masks(3, real, extra)
    with torch.no_grad():
        bare_BTD, _ = mixer(x_BTD)
        padded_BSD, _ = mixer(scatter(x_BTD, mask_BS), mask_BT=mask_BS)
    torch.testing.assert_close(padded_BSD[mask_BS], bare_BTD.flatten(0, 1), rtol=1e-10, atol=1e-10)


@cross_cases
@few
@given(seed=seeds, real=st.integers(1, 6), extra=st.integers(1, 4))
def test_padding_of_a_memory_changes_nothing(case: Case, seed: int, real: int, extra: int) -> None:
    torch.manual_seed(seed)
    mixer, x_BTD, mask_BS = case.build(), torch.randn(3, 4, WIDTH, dtype=torch.float64), masks(3, real, extra)
    memory_BSD = torch.randn(3, real, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        bare_BTD, _ = mixer(x_BTD, memory=Memory(memory_BSD))
        padded_BTD, _ = mixer(x_BTD, memory=Memory(scatter(memory_BSD, mask_BS), mask_BS))
    torch.testing.assert_close(padded_BTD, bare_BTD, rtol=1e-10, atol=1e-10)


@every_case
def test_other_rows_change_nothing(case: Case) -> None:
    mixer = case.build()
    x_BTD, memory_BSD = inputs(case, B=3)
    valid = masks(3, 3, 4 if memory_BSD is None else 2)
    y_BTD, _ = run(mixer, x_BTD, Read(memory_BSD, valid))
    for b in range(3):
        row = slice(b, b + 1)
        alone_BTD, _ = run(mixer, x_BTD[row], Read(None if memory_BSD is None else memory_BSD[row], valid[row]))
        torch.testing.assert_close(alone_BTD, y_BTD[row], rtol=1e-10, atol=1e-10)


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_a_fully_padded_row_gives_no_nan(case: Case, dtype: torch.dtype) -> None:
    mixer = case.build(dtype)
    x_BTD = torch.randn(3, 7, WIDTH, dtype=dtype, requires_grad=True)
    memory_BSD = torch.randn(3, 5, WIDTH, dtype=dtype, requires_grad=True) if case.role == "cross" else None
    valid = torch.tensor([True, False, True])[:, None].expand(3, 7 if memory_BSD is None else 5)
    y_BTD, _ = run(mixer, x_BTD, Read(memory_BSD, valid))
    assert y_BTD.isfinite().all()
    sources = [x for x in (x_BTD, memory_BSD, *mixer.parameters()) if x is not None]
    # Only the real rows count for a loss; still, their gradients pass through the same kernels.
    for rows in ([0, 2], [0, 1, 2]):
        loss = y_BTD[rows].square().sum()
        for gradient in torch.autograd.grad(loss, sources, retain_graph=True, materialize_grads=True):
            assert gradient.isfinite().all()


@pytest.mark.parametrize("case", [c for c in CASES if c.role != "bidirectional"], ids=str)
@few
@given(
    seed=seeds,
    selections=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=3)
    | st.just([[0, 0, 1, 1, 2, 2], [1, 0, 2, 3, 5, 5], [0, 1, 4, 5]]),
    padded=st.booleans(),
)
def test_selected_rows_go_on_as_if_they_were_alone(
    case: Case, seed: int, selections: list[list[int]], padded: bool
) -> None:
    """As beam search does it: rows are repeated, permuted and dropped, step after step."""
    torch.manual_seed(seed)
    mixer = case.build()
    x_BTD, memory_BSD = inputs(case, B=3, T=3)
    valid = masks(3, 2, 1 if memory_BSD is None else 3) if padded else None
    with torch.no_grad():
        _, state = run(mixer, x_BTD, Read(memory_BSD, valid))
        text_BTD, origin_B = x_BTD, torch.arange(3)
        for selection in selections:
            rows_B = torch.tensor(selection) % len(origin_B)
            origin_B, text_BTD, state = origin_B[rows_B], text_BTD[rows_B], select_rows(state, rows_B)
            new_BTD = torch.randn(len(rows_B), 2, WIDTH, dtype=torch.float64)
            first_BD, state = mixer.advance(new_BTD[:, 0], state=state)
            second_BD, state = mixer.advance(new_BTD[:, 1], state=state)
            y_BTD = torch.stack([first_BD, second_BD], dim=1)
            text_BTD = torch.cat([text_BTD, new_BTD], dim=1)
        whole_valid = None if valid is None else valid[origin_B]
        if memory_BSD is not None:
            read = Read(memory_BSD[origin_B], whole_valid)
        else:
            new = text_BTD.shape[1] - 3
            ones = torch.ones(len(origin_B), new, dtype=torch.bool)
            read = Read(None, None if whole_valid is None else torch.cat([whole_valid, ones], dim=1))
        whole_BTD, _ = run(mixer, text_BTD, read)
    torch.testing.assert_close(y_BTD, whole_BTD[:, -2:], rtol=1e-10, atol=1e-10)


# Clause 4: `config.cost` states FLOPs, bytes of state, sequential steps and path length.


def _cost(case: Case, length: int, memory: int | None = None) -> Cost:
    return case.config.cost(length, WIDTH, role=case.role, memory=memory)


@every_case
@pytest.mark.parametrize("length", [1, 11])
def test_declared_flops_are_those_counted(case: Case, length: int) -> None:
    mixer = case.build()
    x_BTD, memory_BSD = inputs(case, B=1, T=length, S=5)
    memory_BSD = None if memory_BSD is None else memory_BSD.detach()  # the counter follows gradients where it can
    # Fused kernels are invisible to the counter, so it watches the plain one.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        run(mixer, x_BTD.detach(), Read(memory_BSD))
    heads, head_width = case.config.position_heads, case.config.position_width(WIDTH)
    queries = case.config.position_queries(length, case.role)
    position = case.position_config().flops(queries, length, heads, head_width)
    if case.position_config().turns:
        position += case.config.turning_flops(length, WIDTH, case.role)
    assert _cost(case, length, memory=5).flops + position == counter.get_total_flops()


@every_case
@pytest.mark.parametrize("length", [1, 11])
def test_declared_state_is_the_state_kept(case: Case, length: int) -> None:
    mixer = case.build(torch.float32)
    x_BTD, memory_BSD = inputs(case, B=1, T=length, S=5)
    with torch.no_grad():  # what decoding keeps; training may keep something else
        _, state = run(mixer, x_BTD.float(), Read(None if memory_BSD is None else memory_BSD.float()))
    kept = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(state))
    assert kept == _cost(case, length, memory=5).state_bytes


@self_cases
@pytest.mark.parametrize("length", [2, 9])
def test_declared_path_is_how_far_influence_travels(case: Case, length: int) -> None:
    """The first position reaches the last after `path` layers, and not before."""
    path = _cost(case, length).path
    draws = 100 if case.name in BY_CONTENT else 1
    for layers in range(length + 1 if path is None else path + 1):
        assert any(_first_reaches_last(case, length, layers) for _ in range(draws)) == (layers == path)


def _first_reaches_last(case: Case, length: int, layers: int) -> bool:
    mixers = [case.build() for _ in range(layers)]
    x_BTD = torch.randn(1, length, WIDTH, dtype=torch.float64)
    ends = []
    for y_BTD in (x_BTD, torch.cat([torch.randn_like(x_BTD[:, :1]), x_BTD[:, 1:]], dim=1)):
        with torch.no_grad():
            for mixer in mixers:
                # The norm keeps scores small: a softmax that has made up its mind lets nothing through.
                y_BTD = nn.functional.layer_norm(y_BTD + mixer(y_BTD)[0], (WIDTH,))
        ends.append(y_BTD[0, -1])
    return bool((ends[0] - ends[1]).abs().max() > 1e-13)


@cross_cases
def test_a_cross_mixer_reaches_every_slot_in_one_layer(case: Case) -> None:
    x_BTD, memory_BSD = inputs(case, B=1)
    assert memory_BSD is not None
    y_BTD, _ = run(case.build(), x_BTD, Read(memory_BSD))
    (gradient_BSD,) = torch.autograd.grad(y_BTD[0, -1].sum(), memory_BSD)
    assert _cost(case, 7, memory=5).path == 1
    assert (gradient_BSD != 0).any(dim=-1).all()


# Clause 5: it learns to copy.


class Copier(nn.Module):
    """Two blocks around a mixer. Causal: text and separator, then the text again. Otherwise: the text in reverse."""

    def __init__(self, config: MixerConfig, role: Role, symbols: int, width: int) -> None:
        super().__init__()
        self.role = role
        settings = BlockConfig(norm="pre", hidden=2 * width, dropout=0.0)
        self.embedding = nn.Embedding(symbols + 1, width)
        self.place = SinusoidalConfig().build_added(width)
        # A block has a mixer of its own and may have one that reads a memory; here the one under test is the only one.
        self.blocks = nn.ModuleList(Block(settings, width, config.build(width, role=role)) for _ in range(2))
        self.head = nn.Linear(width, symbols + 1)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = self.embedding(tokens_BT) + self.place(torch.arange(tokens_BT.shape[1]))
        for block in self.blocks:
            x_BTD, _ = block(x_BTD)
        logits_BTV: Tensor = self.head(x_BTD)
        return logits_BTV


class Reader(Copier):
    """The cross mixer alone: positions without content ask a memory that holds the text."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        place_TD = self.place(torch.arange(tokens_BT.shape[1]))
        memory = Memory(self.embedding(tokens_BT) + place_TD)
        x_BTD = place_TD.expand_as(memory.x_BSD)
        for block in self.blocks:
            assert isinstance(block, Block)
            x_BTD = x_BTD + block.mixer(x_BTD, memory=memory)[0]
            x_BTD = x_BTD + block.feedforward(x_BTD)
        logits_BTV: Tensor = self.head(x_BTD)
        return logits_BTV


@pytest.mark.no_shapes
@pytest.mark.parametrize(
    ("name", "role"), [(name, role) for name in SMALL for role in ROLES if role in SMALL[name][0].roles]
)
def test_it_learns_to_copy(name: str, role: Role) -> None:
    symbols, length, steps = 8, 6, STEPS[name]
    model = (Reader if role == "cross" else Copier)(SMALL[name][0], role, symbols, width=48)
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    correct = 0.0
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * min(1, (step + 1) / 20) * (1 - step / steps)
        text_BT = torch.randint(symbols, (48, length))
        inputs_BT, wanted_BT = text_BT, text_BT.flip(1)
        if role == "causal":
            inputs_BT = torch.cat([text_BT, torch.full((48, 1), symbols), text_BT[:, :-1]], dim=1)
            wanted_BT = text_BT
        logits_BTV = model(inputs_BT)[:, -length:]
        loss = nn.functional.cross_entropy(logits_BTV.flatten(0, 1), wanted_BT.flatten())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        correct = float((logits_BTV.argmax(dim=-1) == wanted_BT).float().mean())
    assert correct > 0.95


# Clause 6: what it cannot do it declares, and asking for it is a clear error.


class DeafConfig(MixerConfig):
    """A mechanism that can do very little, and says so."""

    summary = "passes everything on"
    paper = "none"
    roles: ClassVar[frozenset[Role]] = frozenset({"causal"})
    type: str = "deaf"

    def build(self, width: int, *, role: Role = "causal", position: Any = None) -> Mixer:
        self.require(role, position)
        raise NotImplementedError

    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        return Cost(0, 0, 1, 1)


EVERY_CONFIG = [DeafConfig(), *(config for configs in SMALL.values() for config in configs)]


@pytest.mark.parametrize("config", EVERY_CONFIG, ids=repr)
def test_an_undeclared_role_is_a_clear_error(config: MixerConfig) -> None:
    for role in set(ROLES) - config.roles:
        with pytest.raises(ConfigError, match=f"mixer '{config.type}' cannot be {role}; it can be "):
            config.build(WIDTH, role=role)


@pytest.mark.parametrize("config", EVERY_CONFIG, ids=repr)
def test_a_position_that_cannot_act_is_a_clear_error(config: MixerConfig) -> None:
    if not config.takes_positions:
        position = config.build_position(AlibiConfig(), WIDTH, "causal")
        with pytest.raises(ConfigError, match="no score that relative positions could act in; use positions none"):
            config.build(WIDTH, position=position)


@every_case
def test_a_missing_memory_or_an_impossible_state_is_a_clear_error(case: Case) -> None:
    mixer = case.build()
    x_BTD, memory_BSD = inputs(case)
    if memory_BSD is not None:
        with pytest.raises(ConfigError, match="needs a memory"):
            mixer(x_BTD)
    if case.role == "bidirectional":
        with pytest.raises(ConfigError, match="cannot go on from a state"):
            mixer(x_BTD, state=object())
