"""Position schemes. Attention alone ignores order: permute the inputs, and the outputs are permuted.

Two kinds:

- **added** to the embeddings, once: sinusoidal, learned (`AddedPosition`);
- **inside the score** of every self-attention, for each pair: Shaw, T5, ALiBi, rotary (`ScorePosition`).

A position is the number of real (not padded) tokens before it, so padding on either side changes nothing. Positions
arrive as `position_T` (the same for all rows) or `position_BT`; a score in which heads read different slots also has
`position_BHT`.
"""

import math
from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, SerializeAsAny, ValidationInfo, field_validator
from torch import Tensor, nn

from allyouneed.config import Config, choice
from allyouneed.errors import ConfigError, DataError
from allyouneed.rotary_scaling import RotaryScaling


class AddedPosition(nn.Module, ABC):
    """A vector for each position, added to the embedding."""

    @property
    def longest(self) -> int | None:
        """Return the number of positions; None if unlimited."""
        return None

    @abstractmethod
    def table(self, length: int, device: torch.device) -> Tensor:
        """Return the vectors (N, D) of the first positions, at least `length` of them."""

    def forward(self, position: Tensor) -> Tensor:
        """Return the vectors of positions: (T) -> (T, D), (B, T) -> (B, T, D)."""
        longest = int(position.max()) + 1 if position.numel() else 0
        return self.table(longest, position.device)[position]


class ScorePosition(nn.Module):
    """A scheme that acts on pairs of query and key. The defaults do nothing; a scheme overrides what it needs."""

    rotates: ClassVar[bool] = False  # whether `rotate` does anything

    def rotate(self, x_BHTK: Tensor, position: Tensor) -> Tensor:
        """Return queries or keys rotated by their positions."""
        return x_BHTK

    def rotate_one(self, x_BHTK: Tensor, place: int) -> Tensor:
        """Do the same if all rows are at one position (T = 1), as in decoding."""
        return self.rotate(x_BHTK, torch.tensor([place], device=x_BHTK.device))

    def bias(self, q_BHTK: Tensor, query_position: Tensor, key_position: Tensor) -> Tensor | None:
        """Return the bias of the scaled scores, broadcastable to (B, H, T, S); None if there is none."""
        return None


class PositionConfig(Config, ABC):
    """The settings of one scheme."""

    summary: ClassVar[str]
    paper: ClassVar[str]
    shared: ClassVar[bool] = False  # whether one module serves all layers
    rotates: ClassVar[bool] = False  # whether it rotates queries and keys

    type: str

    def build_added(self, width: int) -> AddedPosition | None:
        """Return the part that is added to embeddings, if the scheme has one."""
        return None

    def build_score(self, heads: int, head_width: int, causal: bool) -> ScorePosition | None:
        """Return the part that acts inside the score, if the scheme has one."""
        return None

    def flops(self, queries: int, keys: int, heads: int, head_width: int) -> int:
        """Return the FLOPs that the scheme adds to a forward pass of attention (matrix products, as counters see)."""
        return 0


class NoPositionConfig(PositionConfig):
    """No positions: an encoder becomes a function of a set; a causal decoder can still count its inputs."""

    summary = "no positions"
    paper = "Haviv et al. 2022, arXiv:2203.16634"
    type: Literal["none"] = "none"


class SinusoidalConfig(PositionConfig):
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)),  PE(pos, 2i+1) = cos(pos / 10000^(2i/D))   (section 3.5).

    In `halves` all sines come before all cosines, as in the authors' code: a fixed permutation of features. That code
    also has other wavelengths, from 2 pi to exactly 2 pi 10000: `inclusive`, with the exponent i / (D/2 - 1).
    """

    summary = "sines and cosines of geometric wavelengths, added to embeddings"
    paper = "Vaswani et al. 2017, arXiv:1706.03762, section 3.5"
    type: Literal["sinusoidal"] = "sinusoidal"
    halves: bool = False
    inclusive: bool = False
    first: NonNegativeInt = 0  # number of the first position

    def build_added(self, width: int) -> "Sinusoidal":
        return Sinusoidal(width, self.halves, self.inclusive, self.first)


class Sinusoidal(AddedPosition):
    table_ND: Tensor

    def __init__(self, width: int, halves: bool = False, inclusive: bool = False, first: int = 0) -> None:
        super().__init__()
        if inclusive and (width < 4 or width % 2):
            raise ConfigError(f"inclusive sinusoidal positions need an even width of at least 4, but it is {width}")
        self.register_buffer("table_ND", torch.empty(0, width), persistent=False)
        self.width, self.halves, self.first = width, halves, first
        self.last = width - 2 if inclusive else width  # the feature whose wavelength is 2 pi 10000

    def table(self, length: int, device: torch.device) -> Tensor:
        table_ND = self.table_ND  # another thread may replace the attribute by a shorter table
        if length > table_ND.shape[0]:
            self.table_ND = table_ND = self._waves(self.first + torch.arange(max(64, 2 * length), device=device))
        return table_ND

    def _waves(self, position_N: Tensor) -> Tensor:
        # In float64: at position 10,000 the error of a float32 angle is a thousandth.
        exponent_R = torch.arange(0, self.width, 2, dtype=torch.float64, device=position_N.device) / self.last
        angle_NR = position_N[:, None].to(torch.float64) * 10000.0**-exponent_R
        if self.halves:
            waves_ND = torch.cat([angle_NR.sin(), angle_NR[:, : self.width // 2].cos()], dim=1)
            return waves_ND.to(self.table_ND.dtype)
        waves_NR2 = torch.stack([angle_NR.sin(), angle_NR.cos()], dim=-1)
        return waves_NR2.flatten(1)[:, : self.width].to(self.table_ND.dtype)


class LearnedConfig(PositionConfig):
    """PE(pos) = row `pos` of a trained table. Positions beyond the table are refused."""

    summary = "a trained vector for each position up to max_length, added to embeddings"
    paper = "Gehring et al. 2017, arXiv:1705.03122; Vaswani et al. 2017, table 3 row E"
    type: Literal["learned"] = "learned"
    max_length: PositiveInt = 512

    def build_added(self, width: int) -> "Learned":
        return Learned(width, self.max_length)


class Learned(AddedPosition):
    def __init__(self, width: int, max_length: int) -> None:
        super().__init__()
        self.table_ND = nn.Parameter(torch.empty(max_length, width))
        nn.init.normal_(self.table_ND, std=width**-0.5)

    @property
    def longest(self) -> int:
        return self.table_ND.shape[0]

    def table(self, length: int, device: torch.device) -> Tensor:
        if length > self.table_ND.shape[0]:
            raise DataError(
                f"a sequence of {length} tokens, but learned positions end at {self.table_ND.shape[0]}; "
                "shorten it, or train a model with a larger model.positions.max_length"
            )
        return self.table_ND


class ShawConfig(PositionConfig):
    """softmax((Q K^T + R) / sqrt(K)),  R_ts = q_t . a_clip(s - t)   with distances clipped to [-clip, clip].

    Differs: only the keys' term of equation 4; the paper's ablation (table 3) finds the values' term unnecessary.
    """

    summary = "a trained vector for each clipped distance, multiplied with the query inside the score"
    paper = "Shaw et al. 2018, arXiv:1803.02155"
    type: Literal["shaw"] = "shaw"
    clip: NonNegativeInt = 16

    def build_score(self, heads: int, head_width: int, causal: bool) -> "Shaw":
        return Shaw(head_width, self.clip)

    def flops(self, queries: int, keys: int, heads: int, head_width: int) -> int:
        return 2 * heads * queries * (2 * self.clip + 1) * head_width


class Shaw(ScorePosition):
    def __init__(self, head_width: int, clip: int) -> None:
        super().__init__()
        self.clip = clip
        self.distance_RK = nn.Parameter(torch.empty(2 * clip + 1, head_width))
        nn.init.xavier_uniform_(self.distance_RK)

    def bias(self, q_BHTK: Tensor, query_position: Tensor, key_position: Tensor) -> Tensor:
        # q . a is computed once for each of the 2 clip + 1 distances, then gathered for the pairs.
        score_BHTR = (q_BHTK @ self.distance_RK.T) / math.sqrt(q_BHTK.shape[-1])
        distance = _distance(query_position, key_position).clamp(-self.clip, self.clip) + self.clip
        return score_BHTR.gather(-1, distance.expand(*score_BHTR.shape[:-1], -1))


class T5Config(PositionConfig):
    """A trained scalar for each head and bucket of distances: exact if near, logarithmic if far. All layers share it.

    Differs: scores stay divided by sqrt(K); T5 folds that into its initialisation.
    """

    summary = "a trained bias for each head and logarithmic bucket of distance, shared by all layers"
    paper = "Raffel et al. 2020, arXiv:1910.10683, section 2.1"
    shared = True
    type: Literal["t5"] = "t5"
    buckets: Annotated[int, Field(ge=4, multiple_of=2)] = 32
    max_distance: Annotated[PositiveInt, Field(validate_default=True)] = 128

    @field_validator("max_distance", mode="after")
    @classmethod
    def _check_max_distance(cls, value: int, info: ValidationInfo) -> int:
        exact = info.data.get("buckets", 0) // 2
        if value <= exact:
            raise ValueError(f"{value}, but the first {exact} distances have one bucket each; it should be larger")
        return value

    def build_score(self, heads: int, head_width: int, causal: bool) -> "T5Bias":
        return T5Bias(heads, self.buckets, self.max_distance, causal)


class T5Bias(ScorePosition):
    def __init__(self, heads: int, buckets: int, max_distance: int, causal: bool) -> None:
        super().__init__()
        self.buckets, self.max_distance, self.causal = buckets, max_distance, causal
        self.bias_RH = nn.Parameter(torch.zeros(buckets, heads))

    def bias(self, q_BHTK: Tensor, query_position: Tensor, key_position: Tensor) -> Tensor:
        bucket = self.bucket(_distance(query_position, key_position))
        if query_position.ndim == 3:  # heads differ
            return self.bias_RH.T[torch.arange(bucket.shape[1], device=bucket.device)[:, None, None], bucket]
        return self.bias_RH[bucket.squeeze(-3)].movedim(-1, -3)

    def bucket(self, distance: Tensor) -> Tensor:
        """Return the bucket of key position minus query position."""
        buckets, base = self.buckets, torch.zeros_like(distance)
        if self.causal:
            back = (-distance).clamp(min=0)
        else:  # half of the buckets are for later keys
            buckets //= 2
            base, back = (distance > 0).long() * buckets, distance.abs()
        exact = buckets // 2
        scale = (buckets - exact) / math.log(self.max_distance / exact)
        far = exact + (torch.log(back.clamp(min=1).float() / exact) * scale).long()
        return base + torch.where(back < exact, back, far.clamp(max=buckets - 1))


class AlibiConfig(PositionConfig):
    """score_ts - m_h |t - s|,  m_h = 2^(-8 h / H) for h = 1..H: nothing is trained; it works for longer inputs too.

    Differs: if H is not a power of two, the same geometric rule applies. `interleaved` uses that of the authors' code:
    the slopes of the power of two below, then every other slope of the one above. Bidirectional layers use |t - s|.
    """

    summary = "a fixed penalty on distance, steeper for some heads"
    paper = "Press et al. 2022, arXiv:2108.12409"
    type: Literal["alibi"] = "alibi"
    interleaved: bool = False

    def build_score(self, heads: int, head_width: int, causal: bool) -> "Alibi":
        return Alibi(heads, self.interleaved)


class Alibi(ScorePosition):
    slope_H: Tensor

    def __init__(self, heads: int, interleaved: bool = False) -> None:
        super().__init__()
        slope_H = _slopes(heads)
        if interleaved and heads & (heads - 1):
            below = 1 << (heads.bit_length() - 1)
            slope_H = torch.cat([_slopes(below), _slopes(2 * below)[::2]])[:heads]
        self.register_buffer("slope_H", slope_H, persistent=False)

    def bias(self, q_BHTK: Tensor, query_position: Tensor, key_position: Tensor) -> Tensor:
        distance = _distance(query_position, key_position).abs().to(q_BHTK.dtype)
        return -self.slope_H.to(q_BHTK.dtype)[:, None, None] * distance


def _slopes(heads: int) -> Tensor:
    """Return 2^(-8 h / H) for h = 1..H."""
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)


class RotaryConfig(PositionConfig):
    """Rotate queries and keys by an angle proportional to their position, so that q_t . k_s depends on t - s only.

        (x_i, x_{i + K/2})  rotated by  t / base^(2i/K)

    With `pairs` = p only the first p pairs are rotated, by t / base^(i/p): the others have no positions.

    Differs: pairs are (i, i + K/2), as in GPT-NeoX and Llama, instead of (2i, 2i + 1): a fixed permutation of features.
    """

    summary = "queries and keys rotated by an angle proportional to their position"
    paper = "Su et al. 2021, arXiv:2104.09864"
    rotates = True
    type: Literal["rotary"] = "rotary"
    base: PositiveFloat = 10000.0
    pairs: PositiveInt | None = None  # number of pairs that are rotated; default: all
    scaling: RotaryScaling | None = None  # of the frequencies; default: none

    def build_score(self, heads: int, head_width: int, causal: bool) -> "Rotary":
        return Rotary(head_width, self.base, self.pairs, self.scaling)


class Rotary(ScorePosition):
    rotates = True
    frequency_R: Tensor

    def __init__(
        self, head_width: int, base: float, pairs: int | None = None, scaling: RotaryScaling | None = None
    ) -> None:
        super().__init__()
        if head_width % 2:
            raise ConfigError(f"rotary positions rotate pairs of features, but head width {head_width} is odd")
        if pairs is not None and pairs > head_width // 2:
            raise ConfigError(f"positions.pairs {pairs}: a head of width {head_width} has {head_width // 2} pairs")
        rotated = 2 * pairs if pairs is not None else head_width
        frequency_R = base ** -(torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
        frequency_R = frequency_R if scaling is None else scaling.scaled(frequency_R)
        frequency_R = torch.cat([frequency_R, frequency_R.new_zeros((head_width - rotated) // 2)])
        self.register_buffer("frequency_R", frequency_R, persistent=False)
        self._cached_waves: tuple[Tensor, Tensor] | None = None  # for the first positions

    def rotate(self, x_BHTK: Tensor, position: Tensor) -> Tensor:
        if position.ndim == 2:  # positions per row: (B, T) -> (B, 1, T)
            position = position.unsqueeze(1)
        return self._rotate_pairs(x_BHTK, *self._waves(position, x_BHTK.dtype))

    def rotate_one(self, x_BHTK: Tensor, place: int) -> Tensor:
        return self._rotate_pairs(x_BHTK, *self.waves_at(place, x_BHTK))

    def waves_at(self, place: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return (cos, cos) and (-sin, sin) of one position: (K) each."""
        cos_NK, sin_NK = self.first_waves(place + 1, like)
        return cos_NK[place], sin_NK[place]

    def first_waves(self, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same for at least the first `count` positions: (N, K) each."""
        cached = self._cached_waves  # another thread may replace the attribute
        if cached is None or count > cached[0].shape[0] or cached[0].dtype != like.dtype:
            first_N = torch.arange(max(64, 2 * count), device=like.device)
            self._cached_waves = cached = self._waves(first_N, like.dtype)
        return cached

    def _waves(self, position: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return (cos, cos) and (-sin, sin) of the angles: (..., K) each."""
        angle = position.unsqueeze(-1).to(torch.float64) * self.frequency_R.to(torch.float64)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)

    @staticmethod
    def _rotate_pairs(x_BHTK: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        left, right = x_BHTK.chunk(2, dim=-1)
        # x cos + swapped(x) sin with the sign in the sine: few passes over x, which is much larger than the angles.
        return torch.addcmul(x_BHTK * cos, torch.cat([right, left], dim=-1), sin)


def rotated_first(head_width: int, pairs: int) -> Tensor:
    """Return our features of a head in the order of other software: those of the rotated pairs first, in halves."""
    half = head_width // 2
    left, right = torch.arange(half), torch.arange(half, head_width)
    return torch.cat([left[:pairs], right[:pairs], left[pairs:], right[pairs:]])


def _distance(query_position: Tensor, key_position: Tensor) -> Tensor:
    """Return key minus query position with an axis for heads: (1, T, S), (B, 1, T, S) by row, or (B, H, T, S)."""
    distance = key_position.unsqueeze(-2) - query_position.unsqueeze(-1)
    return distance if query_position.ndim == 3 else distance.unsqueeze(-3)


POSITIONS: dict[str, type[PositionConfig]] = {
    "none": NoPositionConfig,
    "sinusoidal": SinusoidalConfig,
    "learned": LearnedConfig,
    "shaw": ShawConfig,
    "t5": T5Config,
    "alibi": AlibiConfig,
    "rotary": RotaryConfig,
}

AnyPosition = Annotated[SerializeAsAny[PositionConfig], choice(POSITIONS)]
