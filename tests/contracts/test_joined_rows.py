"""Rows that join and leave a running batch generate what they generate alone: every model, mixer and position.

This is what a server does all day (`serve/engine.py`).
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mixer_contracts import CONTRACTS
from test_models import GENERATING, SOURCE, TARGET, Case, assert_close
from torch import Tensor

from allyouneed.decode.base import pad_left, pad_right
from allyouneed.mixers import MIXERS, MixerConfig, select_rows
from allyouneed.mixers.parts.state import join_rows
from allyouneed.models import Model
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.positions import POSITIONS
from allyouneed.sizes import Sizes

CPU = torch.device("cpu")


@dataclass
class Row:
    """A source, the beginning of a target that is read at once, and the tokens that follow one by one."""

    start: int
    source: list[int]
    prompt: list[int]
    tokens: list[int]
    logits: list[Tensor] = field(default_factory=list)


rows = st.builds(
    Row,
    start=st.integers(0, 6),
    source=st.lists(st.integers(4, SOURCE - 1), min_size=1, max_size=6),
    prompt=st.lists(st.integers(4, TARGET - 1), min_size=1, max_size=7),
    tokens=st.lists(st.integers(4, TARGET - 1), max_size=9),
)
several = st.lists(rows, min_size=2, max_size=5)


def some_rows() -> list[Row]:
    """One row that starts alone, two that join it later together, and one that leaves after its first token."""
    return [
        Row(0, [5, 6, 7], [4, 5], [6, 7, 8, 9, 5, 6]),
        Row(2, [5], [4, 8, 9, 5, 6], [6, 7]),
        Row(2, [8, 9, 5, 4, 6], [7], [4, 5, 6, 7]),
        Row(4, [6, 6], [5, 5, 5], []),
    ]


def run_together(model: Model, all_rows: list[Row]) -> None:
    """Step all rows together; rows start at their times, and leave when their tokens are used up."""
    running: list[Row] = []
    state: Any = None
    for now in range(6 + 10):
        fresh = [row for row in all_rows if row.start == now]
        if fresh:
            begun = model.condition(*pad_right([row.source for row in fresh], CPU))
            x_BTD, begun = model.hidden(*swapped(pad_left([row.prompt for row in fresh], CPU), begun))
            for row, logits_V in zip(fresh, model.head(x_BTD[:, -1]), strict=True):
                row.logits.append(logits_V)
            parts = [begun] if state is None else [state, begun]
            state = join_rows(parts, torch.tensor([len(rows) for rows in (running, fresh) if rows]))
            running += fresh
        stay = [place for place, row in enumerate(running) if len(row.logits) <= len(row.tokens)]
        if len(stay) < len(running):
            running = [running[place] for place in stay]
            state = select_rows(state, torch.tensor(stay)) if stay else None
        if running:
            token_B = torch.tensor([row.tokens[len(row.logits) - 1] for row in running])
            logits_BV, state = model.advance(token_B, state)
            for row, logits_V in zip(running, logits_BV, strict=True):
                row.logits.append(logits_V)


def swapped(padded: tuple[Tensor, Tensor | None], state: Any) -> tuple[Tensor, Any, Tensor | None]:
    return padded[0], state, padded[1]


def check(model: Model, all_rows: list[Row]) -> None:
    for row in all_rows:
        row.logits.clear()
    with torch.inference_mode():
        run_together(model, all_rows)
        for row in all_rows:
            state = model.condition(torch.tensor([row.source]))
            alone_1TV, _ = model.step(torch.tensor([row.prompt + row.tokens]), state)
            assert len(row.logits) == len(row.tokens) + 1
            assert_close(torch.stack(row.logits), alone_1TV[0, len(row.prompt) - 1 :])


@pytest.mark.no_shapes
@settings(max_examples=6)
@pytest.mark.parametrize("case", GENERATING, ids=str)
@given(all_rows=several)
def test_every_model(case: Case, all_rows: list[Row]) -> None:
    torch.manual_seed(1)
    check(case.build(), all_rows)


def random_weights(model: Model) -> Model:
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


@pytest.mark.parametrize("case", GENERATING, ids=str)
def test_every_model_with_shapes(case: Case) -> None:
    check(case.build(), some_rows())


SETTINGS = [(name, number) for name, contract in CONTRACTS.items() for number in range(len(contract.settings))]
POSITIONED = [name for name, mixer in MIXERS.items() if mixer.takes_positions and "causal" in mixer.roles]


def check_mixer(mixer: MixerConfig, all_rows: list[Row]) -> None:
    """As what a decoder mixes with, and as what reads a memory."""
    shape = {"width": 30 if mixer.position_heads == 5 else 12, "hidden": 8, "dropout": 0.0}
    if "causal" in mixer.roles:
        decoder = DecoderConfig(mixer=mixer, layers=2, **shape)
        check(random_weights(decoder.build(Sizes(SOURCE, TARGET))), all_rows)
    if "cross" in mixer.roles:
        softmax = CONTRACTS["softmax"].settings[0]
        both = EncoderDecoderConfig(mixer=softmax, cross=mixer, encoder_layers=1, decoder_layers=1, **shape)
        check(random_weights(both.build(Sizes(SOURCE, TARGET))), all_rows)


@pytest.mark.no_shapes
@settings(max_examples=4)
@pytest.mark.parametrize(("name", "number"), SETTINGS)
@given(all_rows=several)
def test_every_mixer(name: str, number: int, all_rows: list[Row]) -> None:
    torch.manual_seed(1)
    check_mixer(CONTRACTS[name].settings[number], all_rows)


@pytest.mark.parametrize("name", CONTRACTS)
def test_every_mixer_with_shapes(name: str) -> None:
    check_mixer(CONTRACTS[name].settings[0], some_rows())


@pytest.mark.no_shapes
@settings(max_examples=3)
@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("mixer", POSITIONED)
@given(all_rows=several)
def test_every_position(name: str, mixer: str, all_rows: list[Row]) -> None:
    torch.manual_seed(1)
    positions = POSITIONS[name].model_validate({"type": name})
    shape = {"width": 12, "hidden": 8, "layers": 1, "dropout": 0.0}
    config = DecoderConfig(mixer=CONTRACTS[mixer].settings[0], positions=positions, **shape)
    check(random_weights(config.build(Sizes(SOURCE, TARGET))), all_rows)


@pytest.mark.parametrize("case", [Case("encoder-decoder", 0), Case("decoder", 0)], ids=str)
def test_a_batch_that_rows_join_and_leave_for_ever_does_not_grow(case: Case) -> None:
    model = case.build()
    with torch.inference_mode():
        _, state = model.advance(torch.tensor([4]), model.condition(torch.tensor([[5, 6]])))
        for rows in (1, 2, *[3] * 30):  # each row stays for three steps
            _, begun = model.advance(torch.tensor([4]), model.condition(torch.tensor([[5, 6]])))
            state = join_rows([state, begun], torch.tensor([rows, 1]))
            _, state = model.advance(torch.full((rows + 1,), 4), state)
            state = select_rows(state, torch.arange(max(0, rows - 2), rows + 1))
    assert max(block.mixer.kv_cache.length for block in state.blocks) < 10
