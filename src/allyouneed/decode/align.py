"""Word alignment of a text with its translation, from cross-attention.

    A[j, i] = mean over layers, heads and tokens t of target word j of  sum_{tokens s of source word i} alpha[t, s]

alpha[t, s] is how much the model reads source token s while it writes target token t. Each row of A is divided by its
sum. A target word is linked with its best source word, and a source word with its best target word (`links`).

The model reads the given translation once, so the alignment belongs to any translation, whichever engine made it. All
heads of the upper half of the layers count: on number words the upper layers have the fewest errors
(`benchmarks/alignment_error.py`), and so it is in the literature (Garg et al. 2019, arXiv:1909.02074). In a decoder
that reads source and target as one text, alpha are the self-attention weights on the source.
"""

import re
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from allyouneed.decode.base import device_of, generating
from allyouneed.decode.ensemble import Ensemble
from allyouneed.errors import ConfigError
from allyouneed.mixers.base import send_maps_to
from allyouneed.models import Model
from allyouneed.text.codec import Codec
from allyouneed.text.tokenizer import Tokenizer

Span = tuple[int, int]
AlignItem = tuple[str, Sequence[Span], str, Sequence[Span]]  # a source, its words, the target, its words
LONGEST = 1024  # tokens of a text; the maps of all layers have the product of both lengths


def align(model: Model, codec: Codec, items: Sequence[AlignItem], layer: int | None = None) -> list[Tensor | None]:
    """Return an alignment (target words, source words) for each item; None for one that is too long.

    `layer`: only the heads of this layer, from 0: to measure them.

    Raise ConfigError if the model has no attention between target and source.
    """
    if codec.source is None or codec.target is None or codec.classes is not None:
        raise ConfigError("alignments need a model that translates")
    return [_align_words(model, codec, item, layer) for item in items]


def can_align(model: Model, codec: Codec) -> bool:
    """Return whether `align` has an answer for this model."""
    if codec.source is None or codec.target is None or codec.classes is not None:
        return False
    try:
        _token_weights(model, codec, codec.encode_source("a"), codec.target.encode("a") or [0])
    except ConfigError:
        return False
    return True


def word_spans(text: str) -> list[Span]:
    """Return the words of a text: what is between blanks."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def links(weights_JI: Tensor | None) -> list[tuple[int, int]]:
    """Return the linked words (source, target) of an alignment, in order."""
    if weights_JI is None or not weights_JI.numel():
        return []
    rows, columns = weights_JI.argmax(dim=1).tolist(), weights_JI.argmax(dim=0).tolist()
    return sorted({*((i, j) for j, i in enumerate(rows)), *enumerate(columns)})


def _align_words(model: Model, codec: Codec, item: AlignItem, layer: int | None) -> Tensor | None:
    source, source_words, target, target_words = item
    source_tokenizer, target_tokenizer = codec.both()
    if not source_words or not target_words:
        return torch.zeros(len(target_words), len(source_words))
    source_ids, target_ids = codec.encode_source(source), target_tokenizer.encode(target)
    if max(len(source_ids), len(target_ids)) > LONGEST or not target_ids:
        return None
    maps = _token_weights(model, codec, source_ids, target_ids)
    framed = maps[len(maps) // 2 :].mean(dim=0) if layer is None else maps[layer]
    member_SI = _membership(source_tokenizer, source, source_words)
    member_TJ = _membership(target_tokenizer, target, target_words)
    weights_TS = framed[:, codec.text_slice(len(source_ids))]
    if weights_TS.shape != (len(member_TJ), len(member_SI)):
        return None  # a tokeniser whose spans are not those of its ids
    aligned_JI = (member_TJ / member_TJ.sum(dim=0).clamp(min=1e-9)).T @ weights_TS @ member_SI
    return aligned_JI / aligned_JI.sum(dim=1, keepdim=True).clamp(min=1e-9)


def _token_weights(model: Model, codec: Codec, source_ids: Sequence[int], target_ids: Sequence[int]) -> Tensor:
    """Return the cross-attention of each layer, the mean of its heads: target tokens, source tokens and their frame."""
    found: list[Tensor] = []
    model = model.first if isinstance(model, Ensemble) else model
    names = {module: name for name, module in model.named_modules()}
    device, length = device_of(model), len(source_ids)
    # Row t shows what the model read to write token t, so the input is one token behind the target.
    prompt = [*codec.encode_prompt(), *codec.target_start]
    written = [*prompt, *target_ids[:-1]]
    joined = model.kind == "decoder"
    keep = partial(_keep, found, names, length, len(written), joined)
    with generating(model):
        if joined:
            with send_maps_to(keep):
                model.hidden(torch.tensor([[*source_ids, *written]], device=device), model.start())
        else:
            state = model.condition(torch.tensor([list(source_ids)], device=device))
            with send_maps_to(keep):
                model.hidden(torch.tensor([written], device=device), state)
    if not found:
        raise ConfigError("the model has no attention between target and source; alignments need it")
    return torch.stack(found)[:, len(prompt) - 1 :]


def _keep(
    found: list[Tensor],
    names: dict[nn.Module, str],
    source: int,
    written: int,
    joined: bool,
    mixer: nn.Module,
    weights_BHTS: Tensor,
) -> None:
    """Keep a map if it shows how target positions read the source."""
    name = names.get(mixer)
    if name is None or weights_BHTS.shape[0] != 1:
        return
    if joined:
        if weights_BHTS.shape[2:] == (source + written, source + written):
            found.append(weights_BHTS[0, :, source:, :source].float().mean(dim=0).cpu())
    elif not name.endswith("mixer") and weights_BHTS.shape[2:] == (written, source):
        found.append(weights_BHTS[0].float().mean(dim=0).cpu())


def _membership(tokenizer: Tokenizer, text: str, spans: Sequence[Span]) -> Tensor:
    """Return the share of each token (rows) that is in each word (columns)."""
    tokens = tokenizer.spans(text)
    member = torch.zeros(len(tokens), len(spans))
    first = 0
    for row, (_, start, end) in enumerate(tokens):
        while first < len(spans) and spans[first][1] <= start:
            first += 1
        column = first
        while column < len(spans) and spans[column][0] < end:
            overlap = min(end, spans[column][1]) - max(start, spans[column][0])
            member[row, column] = max(0, overlap) / max(1, end - start)
            column += 1
    return member
