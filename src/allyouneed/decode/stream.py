"""Streaming: yield the tokens of one sample as they are drawn. They equal those of `sample` with the same seed."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from allyouneed.decode.base import as_float32, device_of, generating, new_token_limit, start_state
from allyouneed.decode.sample import SampleConfig, UniformStreams, draw_token
from allyouneed.decode.threads import kernel_threads
from allyouneed.mixers import State
from allyouneed.models import Model
from allyouneed.text.specials import BOS, EOS


def stream(
    model: Model,
    prompt: Sequence[int],
    config: SampleConfig,
    source: Sequence[int] | None = None,
    begin: int = BOS,
) -> Iterator[int]:
    """Yield the ids after the prompt, without EOS. Arguments are those of `sample`."""
    device = device_of(model)
    streams, row_B = UniformStreams(config, [(0, 0)]), torch.zeros(1, dtype=torch.long, device=device)
    token_BT = torch.tensor([[begin, *prompt]], device=device)
    token_B: Tensor | None = None
    state: State = None
    for _ in range(new_token_limit(model, config.max_length, prompt, source)):
        # The modes are restored before each yield, so that they do not apply to the caller's code between tokens.
        with generating(model), kernel_threads(model, 1 if token_B is not None else token_BT.shape[1]):
            if token_B is None:
                x_BTD, state = model.hidden(token_BT, start_state(model, [source], device))
                logits_BV = model.head(x_BTD[:, -1])
            else:
                logits_BV, state = model.advance(token_B, state)
            token_B, _ = draw_token(as_float32(logits_BV), config, streams.next(row_B))
            token = int(token_B)
        if token == EOS:
            return
        yield token
