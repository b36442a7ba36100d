"""Sampling: draw each token from the model's distribution, sharpened or cut to its most probable part.

    P'(v) ~ P(v)^(1/temperature),   of which are kept:
    top_k   the k most probable tokens
    top_p   the fewest most probable ones that together reach p     (nucleus; Holtzman et al. 2020, arXiv:1904.09751)
    min_p   those at least min_p times as probable as the best      (Nguyen et al. 2024, arXiv:2407.01082)
    epsilon those with a P' of at least epsilon, or the best one    (Hewitt et al. 2022, arXiv:2210.15191)

each applied to what the previous one kept. A token is drawn by inverting the cumulative distribution at a uniform
number. Every sample has its own stream of uniform numbers, so it depends on the seed and not on its batch.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveInt, field_validator
from torch import Tensor

from allyouneed.config import Config
from allyouneed.decode.base import (
    FIRST_TOKEN,
    Hypothesis,
    device_of,
    generating,
    new_token_limit,
    pack,
    pad_left,
    start_state,
)
from allyouneed.decode.generation_loop import best_token, generation_loop
from allyouneed.decode.threads import kernel_threads, run_concurrently, worker_count
from allyouneed.errors import DataError
from allyouneed.inference.tokens import draw_tokens
from allyouneed.mixers import select_rows
from allyouneed.models import Model
from allyouneed.text.specials import BOS, EOS

MIN_TEMPERATURE = 1e-3  # below it float32 scores overflow; 0 is exact


class SampleConfig(Config):
    """Settings of sampling."""

    temperature: Annotated[float, Field(ge=0)] = 1.0  # 0: always the most probable token
    top_k: PositiveInt | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    epsilon: Annotated[float, Field(ge=0, lt=1)] = 0.0
    seed: NonNegativeInt = 0
    max_length: NonNegativeInt = 256  # maximum number of new tokens, EOS included
    n: PositiveInt = 1  # samples for each prompt
    ends: tuple[NonNegativeInt, ...] = ()  # more ids that end a text, as EOS does
    batch_tokens: PositiveInt = 4096  # source or prompt tokens in a batch, counted once per sample

    @field_validator("temperature")
    @classmethod
    def _not_tiny(cls, value: float) -> float:
        if 0 < value < MIN_TEMPERATURE:
            raise ValueError(
                f"{value} is too close to 0; use 0 (the most probable token) or at least {MIN_TEMPERATURE}"
            )
        return value


def sample(
    model: Model,
    prompts: Sequence[Sequence[int]],
    config: SampleConfig,
    sources: Sequence[Sequence[int]] | None = None,
    begin: int = BOS,
    keys: Sequence[int] | None = None,
    limits: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """Return n continuations of each prompt, in the order of their seeds. A prompt is the first target ids after BOS.

    `begin`: the id that is read first, for a model whose texts do not begin with BOS. `keys`: a number for each prompt
    that its samples depend on, instead of its place. `limits`: the maximum length of each, instead of `max_length`.

    Ids and log-probabilities are those after the prompt. Log-probabilities are the model's own, before temperature and
    cuts.
    """
    if sources is not None and len(sources) != len(prompts):
        raise DataError(f"{len(prompts)} prompts but {len(sources)} sources; each prompt needs one")
    results = [[Hypothesis([], 0.0, 0.0, finished=False)] * config.n for _ in prompts]
    with generating(model):
        pairs = list(zip(prompts, sources if sources is not None else [None] * len(prompts), strict=True))
        lengths = [1 + max(len(prompt), len(source or ())) for prompt, source in pairs]
        device = device_of(model)
        most = [config.max_length] * len(prompts) if limits is None else limits
        items = [item for item, limit in enumerate(most) if limit > 0]

        def draw(batch: list[int]) -> list[Hypothesis]:
            numbers = batch if keys is None else [keys[item] for item in batch]
            streams = UniformStreams(config, [(number, one) for number in numbers for one in range(config.n)])
            given = [pairs[item] for item in batch]
            ends = [new_token_limit(model, most[item], *pairs[item]) for item in batch]
            return _sample_batch(model, given, config, streams, begin, ends)

        packed = pack([lengths[item] for item in items], config.n, config.batch_tokens, parts=worker_count(device))
        batches = [[items[place] for place in batch] for batch in packed]
        for batch, found in run_concurrently(draw, batches, device):
            for place, item in enumerate(batch):
                results[item] = found[place * config.n : (place + 1) * config.n]
    return results


def uniforms(seed: int, prompt: int, number: int, piece: int = 0) -> np.random.Generator:
    """Return the random stream of a sample, or of a further piece of it.

    Its numbers do not depend on how many are drawn at once.
    """
    return np.random.default_rng((seed, prompt, number, piece) if piece else (seed, prompt, number))


class UniformStreams:
    """A stream of uniform numbers for each row, which depends only on (seed, prompt number, sample number)."""

    AHEAD = 64  # numbers drawn at once

    def __init__(self, config: SampleConfig, rows: Sequence[tuple[int, int]]) -> None:
        self._generators = [uniforms(config.seed, *row) for row in rows]
        self._ahead_BT = np.empty((len(rows), 0))
        self._needed = config.temperature > 0

    def next(self, row_B: Tensor) -> Tensor | None:
        """Return the next number, in [0, 1), of the given rows; the other rows skip theirs. At temperature 0: None."""
        if not self._needed:
            return None
        if not self._ahead_BT.shape[1]:
            self._ahead_BT = np.stack([generator.random(self.AHEAD) for generator in self._generators])
        uniform_N = torch.from_numpy(self._ahead_BT[:, 0].copy()).to(row_B.device)
        self._ahead_BT = self._ahead_BT[:, 1:]
        return uniform_N[row_B]


def _sample_batch(
    model: Model,
    pairs: Sequence[tuple[Sequence[int], Sequence[int] | None]],
    config: SampleConfig,
    streams: UniformStreams,
    begin: int,
    ends: Sequence[int],
) -> list[Hypothesis]:
    device = device_of(model)
    state = start_state(model, [source for _, source in pairs], device)
    token_BT, mask_BT = pad_left([[begin, *prompt] for prompt, _ in pairs], device)
    # The prompt is read once, and only its last position is projected; then its row is repeated for each sample.
    with kernel_threads(model, token_BT.numel()):
        x_BTD, state = model.hidden(token_BT, state, mask_BT)
    group_N = torch.arange(len(pairs), device=device).repeat_interleave(config.n)
    logits_NV = model.head(x_BTD[:, -1]).index_select(0, group_N)
    if config.n > 1:
        state = select_rows(state, group_N)
    limits = [end for end in ends for _ in range(config.n)]
    return generation_loop(
        model, logits_NV, state, limits, lambda logits_BV, row_B: draw_token(logits_BV, config, streams.next(row_B))
    )


def draw_token(logits_BV: Tensor, config: SampleConfig, uniform_B: Tensor | None) -> tuple[Tensor, Tensor]:
    """Draw a token (B) for each row by a number in [0, 1); return it with its log-probability (B) before any cut.

    Temperature 0 needs no numbers. Each of `config.ends` is returned as EOS.
    """
    token_B, logprob_B = _draw(logits_BV, config, uniform_B)
    for end in config.ends:
        token_B = token_B.masked_fill(token_B == end, EOS)
    return token_B, logprob_B


def _draw(logits_BV: Tensor, config: SampleConfig, uniform_B: Tensor | None) -> tuple[Tensor, Tensor]:
    if config.temperature == 0:
        return best_token(logits_BV)
    assert uniform_B is not None
    uncut = config.top_k is None and config.top_p == 1 and config.min_p == 0 and config.epsilon == 0
    if uncut and (drawn := draw_tokens(logits_BV, FIRST_TOKEN, config.temperature, uniform_B)) is not None:
        return drawn
    weight_BN, column_BN = cut_probabilities(logits_BV[:, FIRST_TOKEN:], config)
    reached_BN = weight_BN.to(torch.float64).cumsum(dim=1)
    # The factor keeps a rounded product below the sum: a token of probability 0 cannot be drawn.
    wanted_B1 = uniform_B[:, None] * reached_BN[:, -1:] * (1 - 2.0**-40)
    place_B1 = torch.searchsorted(reached_BN, wanted_B1, right=True)
    token_B1 = (place_B1 if column_BN is None else column_BN.gather(1, place_B1)) + FIRST_TOKEN
    return token_B1[:, 0], logits_BV.gather(1, token_B1)[:, 0] - logits_BV.logsumexp(dim=1)


def cut_probabilities(logits_BV: Tensor, config: SampleConfig) -> tuple[Tensor, Tensor | None]:
    """Return probabilities after temperature and cuts (0: cut off), and their columns (None: all, in order)."""
    column_BN = None
    if config.top_k is not None or config.top_p < 1:
        size = logits_BV.shape[1]
        logits_BV, column_BN = logits_BV.topk(min(config.top_k or size, size), dim=1)
    best_B1 = logits_BV.amax(dim=1, keepdim=True)
    weight_BN = ((logits_BV - best_B1) / config.temperature).softmax(dim=1)
    if config.top_p < 1:
        before_BN = weight_BN.cumsum(dim=1) - weight_BN
        # A top_p that float32 rounds to 0 must not cut off the first token.
        weight_BN = weight_BN.masked_fill(before_BN >= max(config.top_p, torch.finfo(weight_BN.dtype).tiny), 0)
    if config.min_p > 0:
        best_B1 = weight_BN.amax(dim=1, keepdim=True)
        weight_BN = weight_BN.masked_fill(weight_BN < config.min_p * best_B1, 0)
    if config.epsilon > 0:
        least_B1 = weight_BN.amax(dim=1, keepdim=True).clamp(max=config.epsilon)
        weight_BN = weight_BN.masked_fill(weight_BN < least_B1, 0)
    return weight_BN, column_BN
