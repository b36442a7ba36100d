"""What all decoding methods share: hypotheses, batches by length, evaluation mode, padding and start states.

Decoding depends only on the contract of `models/base.py` (condition, start, step, hidden, head) and on `select_rows`.
It does not depend on how a model is built or on what its state holds.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from allyouneed.errors import ConfigError
from allyouneed.inference.optimize import is_optimized
from allyouneed.inference.tokens import best_tokens
from allyouneed.mixers import State
from allyouneed.models import Model
from allyouneed.text.specials import BOS, PAD

# PAD and BOS are never generated. They are the first two ids, so a view without them needs no copy.
FIRST_TOKEN = max(PAD, BOS) + 1


@dataclass(frozen=True)
class Hypothesis:
    """A generated target."""

    ids: list[int]  # without BOS and EOS
    logprob: float  # log P of the ids, and of EOS if it is finished
    score: float  # ranks it among others
    finished: bool  # True: it ended with EOS; False: it was cut at the maximum length


@contextmanager
def generating(model: Model) -> Iterator[None]:
    """Run `evaluating` for a model that generates; raise ConfigError for an encoder."""
    if model.kind == "encoder":
        raise ConfigError("an encoder classifies a whole source and generates nothing; decoding needs a decoder")
    with evaluating(model):
        yield


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Disable dropout and gradients inside; restore the mode of every module afterwards."""
    with evaluation_mode(model), torch.inference_mode():
        yield


@contextmanager
def evaluation_mode(model: Model) -> Iterator[None]:
    """Disable dropout inside; restore the mode of every module afterwards."""
    # An optimized model stays in evaluation mode; a look at all its modules takes as long as a token.
    training = [] if is_optimized(model) else [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def device_of(model: Model) -> torch.device:
    """Return the device of the model's weights."""
    return model.head.like.device


def new_token_limit(model: Model, asked: int, prompt: Sequence[int], source: Sequence[int] | None) -> int:
    """Return how many new tokens can be generated, at most `asked`: a text ends at the model's last position.

    The limit is at least 1. If the prompt itself is too long, the model raises an error when it reads it.
    """
    if model.longest is None:
        return asked
    read = 1 + len(prompt) + (len(source or ()) if model.kind == "decoder" else 0)
    return min(asked, max(1, model.longest - read + 1))  # the last token is not read


def start_targets(
    model: Model, sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]] | None = None
) -> tuple[State, Tensor]:
    """Return the state before the last id that each target begins with, and that id for each source: (B).

    Targets begin with BOS and the ids of their prefixes, which have equal lengths.
    """
    device = device_of(model)
    state = model.condition(*pad_right(sources, device))
    begin_BT = torch.tensor([[BOS, *prefix] for prefix in prefixes or [()] * len(sources)], device=device)
    if begin_BT.shape[1] > 1:
        _, state = model.hidden(begin_BT[:, :-1], state)
    return state, begin_BT[:, -1]


def pack(lengths: Sequence[int], rows: int, budget: int, parts: int = 1) -> list[list[int]]:
    """Return batches of item numbers with similar lengths, longest first: a batch that is too large fails at once.

    Each item takes `rows` rows, padded to the longest of its batch. A batch has at most `budget` tokens (or one item),
    and at most 1 / `parts` of all items.
    """
    order = sorted(range(len(lengths)), key=lambda item: -lengths[item])
    most = -(-len(lengths) // parts)
    batches = []
    while order:
        size = min(most, max(1, budget // (max(1, lengths[order[0]]) * rows)))
        batches.append(order[:size])
        order = order[size:]
    return batches


def pad_right(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Return the ids padded on the right and the padding mask (None: no padding). There is at least one column."""
    return _pad(rows, device, left=False)


def pad_left(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Return the ids padded on the left, so that all rows end in the last column, and the padding mask."""
    return _pad(rows, device, left=True)


def _pad(rows: Sequence[Sequence[int]], device: torch.device, left: bool) -> tuple[Tensor, Tensor | None]:
    longest = max(1, *(len(row) for row in rows), 1)
    padding = [[PAD] * (longest - len(row)) for row in rows]
    filled = [[*pad, *row] if left else [*row, *pad] for row, pad in zip(rows, padding, strict=True)]
    ids_BS = torch.tensor(filled, dtype=torch.long, device=device)
    if not any(padding):
        return ids_BS, None
    length_B = torch.tensor([len(row) for row in rows], device=device)
    place_S = torch.arange(longest, device=device)
    if left:
        return ids_BS, place_S >= longest - length_B[:, None]
    return ids_BS, place_S < length_B[:, None]


def as_float32(logits: Tensor) -> Tensor:
    """Return at least float32: probabilities are sums of thousands of terms."""
    return logits if logits.dtype == torch.float64 else logits.float()


def top_tokens(logits_BV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` best tokens of each row, best first: log-probabilities (B, C) among all tokens, ids (B, C)."""
    count = min(count, logits_BV.shape[1] - FIRST_TOKEN)
    return best_tokens(logits_BV, FIRST_TOKEN, count)


def start_state(model: Model, sources: Sequence[Sequence[int] | None], device: torch.device) -> State:
    """Return the state before the first target token. Either every row has a source, or none has."""
    given = [source for source in sources if source is not None]
    if given:
        return model.condition(*pad_right(given, device))
    if model.kind == "encoder-decoder":
        raise ConfigError("an encoder-decoder model needs a source; no source was given")
    return model.start()
