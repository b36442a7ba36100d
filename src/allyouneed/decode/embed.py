"""Vectors of texts, from what a model computes for the positions of a text, with length 1.

    mean   m = 1/S sum_s x_s
    cls    m = x_1, the first position of an encoder
    last   m = x_S
    v = m / |m|

For a model with an encoder, x are the encoder's vectors of all ids that it reads, its frame included (BOS, EOS). For a
language model, x are the vectors that predict what follows each token of the text.

A text of more ids than the model can read is truncated as transformers does: its first ids are read, with the frame
around them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from allyouneed.decode.base import as_float32, device_of, evaluating, pack, pad_right
from allyouneed.errors import ConfigError
from allyouneed.mixers import Memory
from allyouneed.models import Model
from allyouneed.models.encoder import Encoder
from allyouneed.models.encoder_decoder import EncoderDecoder
from allyouneed.text.codec import Codec
from allyouneed.text.specials import BOS

Pool = Literal["mean", "cls", "last"]


@dataclass(frozen=True)
class TextVector:
    """The vector of a text."""

    vector_D: Tensor
    left_out: int  # tokens at the end of the text that were not read


def embed(
    model: Model,
    codec: Codec,
    texts: Sequence[Sequence[int]],
    *,
    pool: Pool = "mean",
    normalize: bool = True,
    batch_tokens: int = 4096,
) -> list[Tensor]:
    """Return a vector (D) in float32 for each text. Its ids are those of `readable_ids`."""
    if pool == "cls" and model.kind == "decoder":
        raise ConfigError("pool 'cls': the first position of a language model has read nothing; use last or mean")
    found: list[Tensor] = [torch.empty(0)] * len(texts)
    starts = codec.source is None and codec.bos
    rows = [[BOS, *ids] if starts or not ids else list(ids) for ids in texts]
    with evaluating(model):
        for batch in pack([len(row) for row in rows], 1, batch_tokens):
            ids_BT, mask_BT = pad_right([rows[item] for item in batch], device_of(model))
            memory = _read(model, ids_BT, mask_BT)
            vector_BD = _mean(memory, skip_first=starts) if pool == "mean" else _end(memory, last=pool == "last")
            if normalize:
                vector_BD = torch.nn.functional.normalize(vector_BD, dim=1)
            for item, vector_D in zip(batch, vector_BD, strict=True):
                found[item] = vector_D
    return found


def readable_ids(codec: Codec, texts: Sequence[str], most: int | None) -> tuple[list[list[int]], list[int]]:
    """Return the ids that `embed` reads of each text, at most `most`, and how many ids of each are left out."""
    tokenizer = codec.source or codec.target
    assert tokenizer is not None
    before, after = codec.framing if codec.source is not None else ((), ())
    found = tokenizer.encode_batch(texts)
    if most is None:
        return [[*before, *ids, *after] for ids in found], [0] * len(found)
    room = max(0, most - len(before) - len(after))
    return [[*before, *ids[:room], *after] for ids in found], [max(0, len(ids) - room) for ids in found]


def longest_text(model: Model, codec: Codec) -> int | None:
    """Return the most ids of a text that `embed` can read; None if there is no limit."""
    if isinstance(model, Encoder | EncoderDecoder):
        return model.source.longest
    if model.longest is None or model.kind != "decoder":
        return None
    return model.longest - (codec.source is None and codec.bos)  # BOS


def _read(model: Model, ids_BT: Tensor, mask_BT: Tensor | None) -> Memory:
    """Return what the model computes for the positions of texts. An encoder may return more or fewer positions."""
    if model.kind == "decoder":
        return Memory(model.hidden(ids_BT, model.start(), mask_BT)[0], mask_BT)
    return model.encode(ids_BT, mask_BT)


def _mean(memory: Memory, skip_first: bool) -> Tensor:
    """Return the mean vectors (B, D) of a batch. `skip_first`: BOS is not a part of the text."""
    x_BSD, mask_BS = memory.x_BSD, memory.mask_BS
    weight_BS = torch.ones(x_BSD.shape[:2], device=x_BSD.device) if mask_BS is None else mask_BS.float()
    if skip_first and x_BSD.shape[1] > 1:
        weight_BS[:, 0] = 0.0
    x_BSD = as_float32(x_BSD).masked_fill(weight_BS.unsqueeze(-1) == 0, 0.0)  # padding may hold NaN
    return x_BSD.sum(dim=1) / weight_BS.sum(dim=1, keepdim=True).clamp(min=1)


def _end(memory: Memory, last: bool) -> Tensor:
    """Return the vectors (B, D) of the first or the last position of each text. Padding is on the right."""
    x_BSD = as_float32(memory.x_BSD)
    if not last:
        return x_BSD[:, 0]
    if memory.mask_BS is None:
        return x_BSD[:, -1]
    last_B = memory.mask_BS.sum(dim=1).clamp(min=1) - 1
    return x_BSD[torch.arange(len(x_BSD), device=x_BSD.device), last_B]
