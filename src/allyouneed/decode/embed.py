"""Vectors of texts: the mean of what a model computes for the positions of a text, with length 1.

    v = m / |m|,  m = 1/S sum_s x_s

For a model with an encoder, x are the encoder's vectors of all ids that it reads, its frame included (BOS, EOS). For a
language model, x are the vectors that predict what follows each token of the text.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from allyouneed.decode.base import as_float32, device_of, evaluating, pack, pad_right
from allyouneed.mixers import Memory
from allyouneed.models import Model
from allyouneed.models.encoder import Encoder
from allyouneed.models.encoder_decoder import EncoderDecoder
from allyouneed.text.codec import Codec
from allyouneed.text.specials import BOS


def embed(model: Model, codec: Codec, texts: Sequence[Sequence[int]], *, batch_tokens: int = 4096) -> list[Tensor]:
    """Return a vector (D) in float32 for each text. Its ids are those of `codec.encode_sources`, or a target's."""
    found: list[Tensor] = [torch.empty(0)] * len(texts)
    starts = codec.source is None and codec.bos
    rows = [[BOS, *ids] if starts or not ids else list(ids) for ids in texts]
    with evaluating(model):
        for batch in pack([len(row) for row in rows], 1, batch_tokens):
            ids_BT, mask_BT = pad_right([rows[item] for item in batch], device_of(model))
            vector_BD = _mean(_read(model, ids_BT, mask_BT), skip_first=starts)
            for item, vector_D in zip(batch, vector_BD, strict=True):
                found[item] = vector_D
    return found


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
    """Return the vectors (B, D) of a batch. `skip_first`: BOS is not a part of the text."""
    x_BSD, mask_BS = memory.x_BSD, memory.mask_BS
    weight_BS = torch.ones(x_BSD.shape[:2], device=x_BSD.device) if mask_BS is None else mask_BS.float()
    if skip_first and x_BSD.shape[1] > 1:
        weight_BS[:, 0] = 0.0
    x_BSD = as_float32(x_BSD).masked_fill(weight_BS.unsqueeze(-1) == 0, 0.0)  # padding may hold NaN
    mean_BD = x_BSD.sum(dim=1) / weight_BS.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.nn.functional.normalize(mean_BD, dim=1)
