"""The mixers under contract: one line each in `CONTRACTS`, from which every law about mixers takes its cases.

A new mechanism adds its line here. All laws then apply to it in every role that it declares and with every position
scheme that it accepts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from oracle_parts import Oracle
from oracles_attention import (
    bigbird_oracle,
    local_oracle,
    longformer_oracle,
    softmax_oracle,
    sparse_oracle,
    window_oracle,
)
from oracles_memory import (
    compressive_oracle,
    full_shared_query_key,
    memory_compressed_oracle,
    reformer_oracle,
    xl_oracle,
)
from oracles_sums import (
    convolution_oracle,
    fourier_oracle,
    linear_oracle,
    linformer_oracle,
    nystrom_oracle,
    performer_oracle,
    recurrent_oracle,
    softmax_of_projections,
)
from torch import Tensor

from allyouneed.mixers import Cost, Memory, Mixer, MixerConfig, Role, State
from allyouneed.mixers.bigbird import BigBirdConfig
from allyouneed.mixers.compressive import CompressiveConfig
from allyouneed.mixers.convolution import ConvolutionConfig
from allyouneed.mixers.fourier import FourierConfig
from allyouneed.mixers.linear import LinearConfig
from allyouneed.mixers.linformer import LinformerConfig
from allyouneed.mixers.local import LocalConfig
from allyouneed.mixers.longformer import LongformerConfig
from allyouneed.mixers.memory_compressed import MemoryCompressedConfig
from allyouneed.mixers.nystrom import NystromConfig
from allyouneed.mixers.performer import PerformerConfig
from allyouneed.mixers.recurrent import GruConfig, LstmConfig, RnnConfig
from allyouneed.mixers.reformer import ReformerConfig
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.mixers.sparse import SparseConfig
from allyouneed.mixers.window import WindowConfig
from allyouneed.mixers.xl import XLConfig
from allyouneed.positions import POSITIONS, PositionConfig

WIDTH = 12


@dataclass(frozen=True)
class Contract:
    """The oracle of a mixer, and the settings that are tested. The first of them also has to learn to copy.

    An approximation also names what it approximates, and a finer setting that must come nearer than the first one.
    """

    oracle: Oracle
    settings: Sequence[MixerConfig]
    copies_after: int = 400  # training steps
    approximates: Oracle | None = None
    finer: MixerConfig | None = None


CONTRACTS: dict[str, Contract] = {
    "softmax": Contract(
        softmax_oracle,
        [
            SoftmaxConfig(heads=3),
            SoftmaxConfig(heads=1, bias=False),
            SoftmaxConfig(heads=5, key_width=2, value_width=3),
            SoftmaxConfig(heads=6, key_heads=2),
            SoftmaxConfig(heads=4, key_heads=1, key_width=4, value_width=2, bias=False),
            SoftmaxConfig(heads=6, key_heads=3, bias="inputs", head_norm=1e-3, score_cap=0.5),
        ],
        copies_after=150,
    ),
    "window": Contract(
        window_oracle,
        [
            WindowConfig(heads=3, window=12),
            WindowConfig(heads=3, window=3),
            WindowConfig(heads=2, window=2, dilation=3, bias=False),
            WindowConfig(heads=1, window=1),
        ],
        copies_after=150,
    ),
    "longformer": Contract(
        longformer_oracle,
        [
            LongformerConfig(heads=3, window=4, everywhere=2),
            LongformerConfig(heads=2, window=1, everywhere=1, bias=False),
            LongformerConfig(heads=2, window=2, everywhere=3),
            LongformerConfig(heads=3, window=2, everywhere=0),
        ],
        copies_after=150,
    ),
    "bigbird": Contract(
        bigbird_oracle,
        [
            BigBirdConfig(heads=3, block=2, random=2, seed=1),
            BigBirdConfig(heads=2, block=1, globals=2, random=1, bias=False),
            BigBirdConfig(heads=1, block=3, random=0),
            BigBirdConfig(heads=2, block=64),
        ],
        copies_after=150,
    ),
    "sparse": Contract(
        sparse_oracle,
        [
            SparseConfig(heads=3, pattern="fixed", stride=3, summaries=2),
            SparseConfig(heads=3, pattern="strided", stride=3),
            SparseConfig(heads=2, pattern="fixed", stride=4, summaries=1, bias=False),
            SparseConfig(heads=1, pattern="fixed", stride=2, summaries=2),
            SparseConfig(heads=2, pattern="strided", stride=1),
            SparseConfig(heads=2, pattern="strided", stride=8),
        ],
        copies_after=150,
    ),
    "linear": Contract(linear_oracle, [LinearConfig(heads=3), LinearConfig(heads=2, bias=False)]),
    "performer": Contract(
        performer_oracle,
        [PerformerConfig(heads=3, features=9), PerformerConfig(heads=1, features=30, bias=False)],
        approximates=softmax_of_projections,
        finer=PerformerConfig(heads=3, features=3000),
    ),
    "linformer": Contract(
        linformer_oracle,
        [
            LinformerConfig(heads=3, slots=4, max_length=40),
            LinformerConfig(heads=2, slots=3, max_length=40, share="key-value"),
            LinformerConfig(heads=2, slots=3, max_length=40, share="none", bias=False),
        ],
    ),
    "nystrom": Contract(
        nystrom_oracle,
        [
            NystromConfig(heads=3, landmarks=6, iterations=2),
            NystromConfig(heads=2, landmarks=3, iterations=3, kernel=3, bias=False),
        ],
        copies_after=150,
    ),
    "fourier": Contract(fourier_oracle, [FourierConfig()], copies_after=800),
    "local": Contract(
        local_oracle,
        [
            LocalConfig(heads=3, block=13),
            LocalConfig(heads=2, block=3, bias=False),
            LocalConfig(heads=1, block=2),
            LocalConfig(heads=3, block=3, before=1),
            LocalConfig(heads=2, block=2, before=2, bias=False),
        ],
        copies_after=150,
    ),
    "memory-compressed": Contract(
        memory_compressed_oracle,
        [
            MemoryCompressedConfig(heads=3, stride=2),
            MemoryCompressedConfig(heads=2, stride=3, bias=False),
            MemoryCompressedConfig(heads=1, stride=1),
        ],
    ),
    "reformer": Contract(
        reformer_oracle,
        [
            ReformerConfig(heads=3, buckets=2, rounds=3, chunk=12),
            ReformerConfig(heads=2, buckets=(2, 4), rounds=2, chunk=2),
            ReformerConfig(heads=2, buckets=6, rounds=1, chunk=1, bias=False),
        ],
        copies_after=150,
        approximates=full_shared_query_key,
        finer=ReformerConfig(heads=3, buckets=2, rounds=24, chunk=12),
    ),
    "xl": Contract(
        xl_oracle,
        [XLConfig(heads=3, memory=12), XLConfig(heads=2, memory=3, clamp=2, bias=False), XLConfig(heads=1, memory=1)],
        copies_after=150,
    ),
    "compressive": Contract(
        compressive_oracle,
        [
            CompressiveConfig(heads=3, memory=8, compressed=4, rate=2),
            CompressiveConfig(heads=2, memory=1, compressed=2, rate=2, clamp=3, bias=False),
            CompressiveConfig(heads=1, memory=1, compressed=1, rate=1, compression="mean"),
            CompressiveConfig(heads=2, memory=2, compressed=0, rate=3, compression="max"),
        ],
        copies_after=150,
    ),
    "rnn": Contract(recurrent_oracle, [RnnConfig()]),
    "lstm": Contract(recurrent_oracle, [LstmConfig()]),
    "gru": Contract(recurrent_oracle, [GruConfig()]),
    "convolution": Contract(
        convolution_oracle,
        [
            ConvolutionConfig(kernel=9),
            ConvolutionConfig(kernel=3),
            ConvolutionConfig(kernel=2, dilation=3),
            ConvolutionConfig(kernel=4),
        ],
    ),
}
# With these settings a short sequence meets every branch: clipped distances, logarithmic buckets.
SMALL_POSITIONS: dict[str, dict[str, Any]] = {"shaw": {"clip": 2}, "t5": {"buckets": 8, "max_distance": 5}}
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
        variant = CONTRACTS[self.name].settings.index(self.config)
        return f"{self.name}{variant}-{self.role}-{self.position}"


SCORED = [name for name, cls in POSITIONS.items() if cls.model_validate({}).build_score(2, 2, True) is not None]


def _schemes(config: MixerConfig, role: Role) -> list[str]:
    """The position schemes under which a mixer is tried: all of them for its first setting, two for its variations."""
    if not config.takes_positions or role == "cross":
        return ["none"]
    return ["none", *(SCORED if config == CONTRACTS[config.type].settings[0] else ["shaw", "rotary"])]


CASES = [
    Case(name, config, role, position)
    for name, contract in CONTRACTS.items()
    for config in contract.settings
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


def declared_cost(case: Case, length: int, memory: int | None = None) -> Cost:
    return case.config.cost(length, WIDTH, role=case.role, memory=memory)


def masks(rows: int, real: int, extra: int) -> Tensor:
    """Return masks with `real` real and `extra` padded slots in each row, in random places."""
    return torch.stack([torch.randperm(real + extra) < real for _ in range(rows)])


def assert_close_with_gradients(ours: Tensor, theirs: Tensor, sources: list[Tensor], tolerance: float) -> None:
    close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    close(ours, theirs)
    noise = torch.randn_like(theirs)
    # A weight that is trained by an auxiliary loss has no gradient here.
    gradient = partial(torch.autograd.grad, inputs=sources, grad_outputs=noise, materialize_grads=True)
    close(gradient(ours), gradient(theirs))
