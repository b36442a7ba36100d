"""What all ways of decoding share: hypotheses, batches by length, and the care a model needs while it only predicts.

Decoding knows the contract of `models/base.py` (condition, start, step, hidden, head) and `select_rows`, and nothing of
what a model is made of or what its state holds.
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

# PAD and BOS are never generated. They are the first two ids, so leaving them out is a view, not a copy.
FIRST_TOKEN = max(PAD, BOS) + 1


@dataclass(frozen=True)
class Hypothesis:
    """Something a model says."""

    ids: list[int]  # without BOS and EOS
    logprob: float  # log P of the ids, and of EOS if it is finished
    score: float  # what ranks it
    finished: bool  # whether it ended with EOS, or was cut at its longest permitted length


@contextmanager
def generating(model: Model) -> Iterator[None]:
    """`evaluating`, for models that generate."""
    if model.kind == "encoder":
        raise ConfigError("an encoder answers for a whole source and generates nothing; decoding needs a decoder")
    with evaluating(model):
        yield


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """No dropout and no gradients inside; afterwards every module is in the mode it was in."""
    with evaluation_mode(model), torch.inference_mode():
        yield


@contextmanager
def evaluation_mode(model: Model) -> Iterator[None]:
    """No dropout inside; afterwards every module is in the mode it was in."""
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
    """Where the model's weights are."""
    return model.head.weight_VD.device


def new_token_limit(model: Model, asked: int, prompt: Sequence[int], source: Sequence[int] | None) -> int:
    """How many new tokens there can be, if `asked` are wanted: at the model's last position a text ends.

    What is too long before it begins has one, and the model says what is wrong when it reads it.
    """
    if model.longest is None:
        return asked
    read = 1 + len(prompt) + (len(source or ()) if model.kind == "decoder" else 0)
    return min(asked, max(1, model.longest - read + 1))  # nobody reads the last one


def pack(lengths: Sequence[int], rows: int, budget: int, parts: int = 1) -> list[list[int]]:
    """Numbers of items in batches of similar lengths, the longest first: a batch too big for the machine shows at once.

    A batch of items that need `rows` rows each, all padded to its longest, holds at most `budget` tokens (or one item),
    and at most one part in `parts` of all items.
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
    """The ids with PAD behind them, and which are real (None: all). A batch of empty rows still has one column."""
    return _pad(rows, device, left=False)


def pad_left(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The same with PAD in front: all rows end in the last column."""
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
    """In float32 at least: probabilities are sums of thousands of terms."""
    return logits if logits.dtype == torch.float64 else logits.float()


def top_tokens(logits_BV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best words of each row, best first: log-probabilities (B, C) among all tokens, and ids (B, C)."""
    count = min(count, logits_BV.shape[1] - FIRST_TOKEN)
    return best_tokens(logits_BV, FIRST_TOKEN, count)


def start_state(model: Model, sources: Sequence[Sequence[int] | None], device: torch.device) -> State:
    """The state in which the targets begin. Either every row has a source, or none has."""
    given = [source for source in sources if source is not None]
    if given:
        return model.condition(*pad_right(given, device))
    if model.kind == "encoder-decoder":
        raise ConfigError("an encoder-decoder model says something about a source; no source was given")
    return model.start()
