"""Attention weights of every layer and head, in one shape.

    with record_maps(model) as maps:
        model.step(tokens_BT, model.condition(source_BS))
    maps[-1].name, maps[-1].weights_BHTS        # "decoder.blocks.5.cross", and one row for each query position

Every mixer reports its weights through `mixers.base.send_maps_to`, so new mechanisms appear here without any change.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from allyouneed.decode import SearchConfig, translate
from allyouneed.decode.base import device_of, generating
from allyouneed.errors import ConfigError
from allyouneed.folder import Bundle
from allyouneed.inspection.drawing import weights_html
from allyouneed.mixers.base import send_maps_to
from allyouneed.models import Model
from allyouneed.text.specials import EOS, UNK
from allyouneed.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one mixer in one call."""

    name: str  # the mixer's name in its model: "decoder.blocks.1.cross"
    weights_BHTS: Tensor  # for each row and head: how much position T reads from position S

    def _repr_html_(self) -> str:
        return weights_html(self.weights_BHTS[0], None, None, self.name)


@contextmanager
def record_maps(model: Model) -> Iterator[list[AttentionMap]]:
    """Record the attention weights of the model's mixers in a list, in the order of their calls."""
    names = {module: name for name, module in model.named_modules()}
    maps: list[AttentionMap] = []

    def keep(mixer: torch.nn.Module, weights_BHTS: Tensor) -> None:
        if mixer in names:
            maps.append(AttentionMap(names[mixer], weights_BHTS.detach().cpu()))

    with send_maps_to(keep):
        yield maps


@dataclass(frozen=True)
class TranslationMaps:
    """The tokens of a translation, and the maps of every mixer."""

    source: list[str]  # the tokens of the source, EOS included
    target: list[str]  # the tokens of the target, EOS included: the token that each row writes
    maps: list[AttentionMap]  # B is 1

    def of(self, ending: str) -> list[AttentionMap]:
        """Return the maps of mixers whose names end like this, for example with "cross"."""
        return [one for one in self.maps if one.name.endswith(ending)]

    def _repr_html_(self) -> str:
        cross = self.of("cross")
        return weights_html(cross[-1].weights_BHTS[0], self.target, self.source, cross[-1].name) if cross else ""


def translation_maps(bundle: Bundle, text: str, target: str | None = None) -> TranslationMaps:
    """Return the maps of a translation: of the given target, or of the model's own greedy output."""
    codec = bundle.codec
    if codec.source is None or codec.target is None or bundle.model.kind != "encoder-decoder":
        raise ConfigError(f"{bundle.path}: translation maps need an encoder-decoder with cross-attention")
    if target is None:
        target = translate(bundle.model, codec, [text], SearchConfig(beam=1))[0][0].text
    source_ids, target_ids, device = codec.encode_source(text), codec.encode_target(target), device_of(bundle.model)
    with generating(bundle.model), record_maps(bundle.model) as maps:
        state = bundle.model.condition(torch.tensor([source_ids], device=device))
        # Row t shows what the model read to write token t, so the input is one token behind the target.
        input_BT = torch.tensor([[*codec.encode_prompt(), *target_ids[:-1]]], device=device)
        bundle.model.hidden(input_BT, state)
    return TranslationMaps(_texts(codec.source, source_ids), _texts(codec.target, target_ids), maps)


def _texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    names = {EOS: "end", UNK: "?"}
    return [names.get(token) or tokenizer.decode([token]) for token in ids]


def heads_of(maps: Sequence[AttentionMap]) -> list[tuple[str, Tensor]]:
    """Return the name of each head and its weights (T, S) for the first row of the batch."""
    return [
        (f"{one.name}, head {head + 1}", one.weights_BHTS[0, head])
        for one in maps
        for head in range(one.weights_BHTS.shape[1])
    ]
