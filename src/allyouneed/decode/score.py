"""Score given targets by their log-probability.

    log P(y | x) = sum_t log P(y_t | y_<t, x)

EOS counts as the last token of every target, so these are probabilities of complete texts. Memory is bounded: sequences
are read in segments through the state, and logits are computed for a limited number of positions at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from allyouneed.decode.base import as_float32, device_of, generating, pack, pad_right, start_state
from allyouneed.decode.threads import run_concurrently, worker_count
from allyouneed.mixers import State
from allyouneed.models import Model
from allyouneed.text.specials import BOS, EOS

Pair = tuple[Sequence[int] | None, Sequence[int]]  # source (None: the model has none) and target

SEGMENT = 1024  # positions of a sequence at once
LOGITS = 1 << 22  # numbers at once: 16 MiB in float32


@dataclass(frozen=True)
class Scored:
    """The log-probability of a target, in nats."""

    logprob: float
    tokens: int
    token_logprobs: list[float]


def score(
    model: Model,
    pairs: Sequence[Pair],
    *,
    ended: bool = True,
    batch_tokens: int = 4096,
    begins: Sequence[int] | None = None,
    prefix: Sequence[int] = (),
) -> list[Scored]:
    """Return log P of each target given its source. Targets have no BOS; EOS at their end is optional.

    With `ended=False` a target is scored as the beginning of a text: EOS is not added. `begins`: the id that is read
    before each target, for a model whose texts do not begin with BOS. `prefix`: ids between that one and each target,
    which have no probability, such as the tag of a language.
    """
    begins = [BOS] * len(pairs) if begins is None else begins
    targets = [[*prefix, *(_with_end(target) if ended else target)] for _, target in pairs]
    lengths = [max(len(source or ()), len(target)) for (source, _), target in zip(pairs, targets, strict=True)]
    results = [Scored(0.0, 0, [])] * len(pairs)
    device = device_of(model)

    def score_items(items: list[int]) -> list[list[float]]:
        sources, begin = [pairs[item][0] for item in items], [begins[item] for item in items]
        return _score_batch(model, sources, [targets[item] for item in items], begin)

    with generating(model):
        for with_source in (True, False):
            chosen = [item for item, (source, _) in enumerate(pairs) if (source is not None) is with_source]
            packed = pack([lengths[item] for item in chosen], 1, batch_tokens, parts=worker_count(device))
            batches = [[chosen[place] for place in batch] for batch in packed]
            for items, rows in run_concurrently(score_items, batches, device):
                for item, row in zip(items, rows, strict=True):
                    counted = row[len(prefix) :]
                    results[item] = Scored(sum(counted), len(counted), counted)
    return results


def _with_end(target: Sequence[int]) -> list[int]:
    return list(target) if len(target) and target[-1] == EOS else [*target, EOS]


def _score_batch(
    model: Model, sources: Sequence[Sequence[int] | None], targets: Sequence[Sequence[int]], begins: Sequence[int]
) -> list[list[float]]:
    device = device_of(model)
    state = start_state(model, sources, device)
    output_BT, mask_BT = pad_right(targets, device)
    input_BT = torch.cat([torch.tensor(begins, device=device)[:, None], output_BT[:, :-1]], dim=1)
    pieces = []
    for start in range(0, output_BT.shape[1], SEGMENT):
        columns = slice(start, start + SEGMENT)
        valid = None if mask_BT is None else mask_BT[:, columns]
        piece, state = _score_segment(model, state, input_BT[:, columns], output_BT[:, columns], valid)
        pieces.append(piece)
    rows: list[list[float]] = torch.cat(pieces, dim=1).tolist()
    return [row[: len(target)] for row, target in zip(rows, targets, strict=True)]


def _score_segment(
    model: Model, state: State, input_BT: Tensor, output_BT: Tensor, mask_BT: Tensor | None
) -> tuple[Tensor, State]:
    x_BTD, state = model.hidden(input_BT, state, mask_BT)
    x_ND, output_N = x_BTD.flatten(0, 1), output_BT.flatten()
    piece = max(1, LOGITS // model.head.size)
    parts = [
        token_logprobs(model.head(x_ND[place : place + piece]), output_N[place : place + piece])
        for place in range(0, x_ND.shape[0], piece)
    ]
    return torch.cat(parts).view(output_BT.shape), state


def token_logprobs(logits_NV: Tensor, token_N: Tensor) -> Tensor:
    """Return log softmax(logits) at one token of each row."""
    logits_NV = as_float32(logits_NV)
    return logits_NV.gather(1, token_N[:, None])[:, 0] - logits_NV.logsumexp(dim=1)
