"""Fused stacks equal their blocks, whatever is done to the state between two steps."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from allyouneed import kernels
from allyouneed.inference.fused_stack import FusedState
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.mixers import State, select_rows
from allyouneed.mixers.base import send_maps_to
from allyouneed.mixers.linear import LinearConfig
from allyouneed.mixers.parts.state import join_rows
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models import Model
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.encoder import EncoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.positions import RotaryConfig
from allyouneed.sizes import Sizes

SHAPE: dict[str, Any] = {"width": 24, "hidden": 40, "mixer": SoftmaxConfig(heads=3)}
BOTH: dict[str, Any] = {**SHAPE, "encoder_layers": 2, "decoder_layers": 2}
LLAMA: dict[str, Any] = {
    **SHAPE,
    "mixer": SoftmaxConfig(heads=6, key_heads=2, bias=False),
    "norm": "pre",
    "normalisation": "rms",
    "positions": RotaryConfig(),
    "feedforward": "swiglu",
    "feedforward_bias": False,
    "embedding_scale": False,
}
WIDTHS = [SoftmaxConfig(heads=2, key_width=5, value_width=7), SoftmaxConfig(heads=3, key_width=4, value_width=4)]
MODELS: dict[str, Any] = {
    "the paper's": EncoderDecoderConfig(**BOTH),
    "pre-norm": EncoderDecoderConfig(**BOTH, norm="pre"),
    "rotary, RMS norm": EncoderDecoderConfig(**BOTH, norm="pre", normalisation="rms", positions=RotaryConfig()),
    "heads of other widths": EncoderDecoderConfig(**{**BOTH, "mixer": WIDTHS}),
    "decoder": DecoderConfig(**SHAPE, layers=2),
    "groups of heads": DecoderConfig(**{**SHAPE, "mixer": SoftmaxConfig(heads=4, key_heads=2)}, layers=2),
    "Llama": DecoderConfig(**LLAMA, layers=2),
    "GELU, groups that share an encoder": EncoderDecoderConfig(
        **{**BOTH, "mixer": SoftmaxConfig(heads=4, key_heads=1), "cross": SoftmaxConfig(heads=3)},
        feedforward="gelu-tanh",
    ),
    "SiLU": DecoderConfig(**SHAPE, layers=2, feedforward="silu"),
    "gated GELU": DecoderConfig(**SHAPE, layers=2, feedforward="geglu-tanh"),
    "rotary decoder": DecoderConfig(**SHAPE, layers=2, positions=RotaryConfig(), norm="pre"),
}

pytestmark = pytest.mark.skipif(kernels.build.library() is None, reason="no C compiler: nothing is fused")


def two(name: str) -> tuple[Model, Model]:
    """Return a plain model and the same model optimized."""
    made = []
    for _ in range(2):
        torch.manual_seed(3)
        model = MODELS[name].build(Sizes(30, 30, shared=True)).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # biases and norms of their own
                parameter += 0.1 * torch.randn_like(parameter)
        made.append(model)
    optimize_for_inference(made[1])
    return made[0], made[1]


def sources(count: int, draw: random.Random) -> tuple[Tensor, Tensor]:
    length_B = torch.tensor([draw.randint(1, 6) for _ in range(count)])
    mask_BS = torch.arange(int(length_B.max())) < length_B[:, None]
    return torch.randint(4, 30, mask_BS.shape) * mask_BS, mask_BS


def begun(model: Model, source_BS: Tensor, mask_BS: Tensor) -> State:
    return model.condition(source_BS, mask_BS) if model.kind == "encoder-decoder" else model.start()


class Pair:
    """Both models, and a state of each."""

    def __init__(self, name: str, draw: random.Random, rows: int) -> None:
        self.models, self.draw, self.rows = two(name), draw, rows
        read = sources(rows, draw)
        self.states = [begun(model, *read) for model in self.models]

    def go_on(self, keep: bool = True) -> None:
        token_B = torch.randint(4, 30, (self.rows,))
        self._compare([model.advance(token_B, state) for model, state in self._both()], keep)

    def read(self, length: int) -> None:
        token_BT = torch.randint(4, 30, (self.rows, length))
        self._compare([model.step(token_BT, state) for model, state in self._both()], keep=True)

    def select(self, rows: int) -> None:
        self.choose(torch.randint(0, self.rows, (rows,)))

    def choose(self, chosen_B: Tensor) -> None:
        self.states, self.rows = [select_rows(state, chosen_B) for state in self.states], len(chosen_B)

    def join(self, rows: int) -> None:
        read, first_B = sources(rows, self.draw), torch.ones(rows, dtype=torch.long)
        fresh = [model.advance(first_B, begun(model, *read))[1] for model in self.models]
        counts_P = torch.tensor([self.rows, rows])
        self.states = [join_rows([*both], counts_P) for both in zip(self.states, fresh, strict=True)]
        self.rows += rows

    def _both(self) -> list[tuple[Model, State]]:
        return list(zip(self.models, self.states, strict=True))

    def _compare(self, found: list[tuple[Tensor, State]], keep: bool) -> None:
        (right, one), (said, other) = found
        assert_close(said, right, atol=2e-5, rtol=1e-4)
        if keep:
            self.states = [one, other]


@torch.inference_mode()
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", list(MODELS))
def test_any_sequence_of_operations_on_a_state(name: str, seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    pair = Pair(name, draw, rows=3)
    pair.go_on()
    assert isinstance(pair.states[1], FusedState)
    for _ in range(24):
        what = draw.choice(["drop", "repeat", "group", "join", "read", "read again", "twice", "nothing"])
        if what == "drop":
            pair.select(max(1, pair.rows - draw.randint(0, 2)))
        elif what == "repeat":
            pair.select(min(8, pair.rows + draw.randint(0, 4)))
        elif what == "group" and pair.rows < 5:  # as at the start of a beam search
            pair.choose(torch.arange(pair.rows).repeat_interleave(2))
        elif what == "join" and pair.rows < 8:
            pair.join(2)
        elif what.startswith("read"):
            pair.read(draw.randint(1, 3))
            if what == "read again":
                pair.choose(torch.arange(pair.rows).repeat_interleave(2)[:8])
                pair.go_on()
                pair.read(2)
                pair.join(1)
                pair.select(3)
        elif what == "twice":
            pair.go_on(keep=False)
        pair.go_on()
        assert isinstance(pair.states[1], FusedState)


@torch.inference_mode()
def test_selected_row_numbers_are_copied_and_may_be_strided() -> None:
    pair = Pair("the paper's", random.Random(1), rows=3)
    pair.go_on()
    chosen = torch.tensor([[2, 9], [0, 9]], dtype=torch.int32)[:, 0]
    pair.choose(chosen)
    chosen.zero_()
    pair.go_on()


@torch.inference_mode()
@pytest.mark.parametrize("fused_first", [False, True])
def test_states_of_both_kinds_can_be_joined(fused_first: bool) -> None:
    pair = Pair("decoder", random.Random(1), rows=2)
    states = []
    for model in pair.models:
        stepped = model.advance(torch.tensor([1, 1]), model.start())[1]
        read = model.step(torch.tensor([[1, 5, 6]]), model.start())[1]
        states.append((stepped, read) if fused_first else (read, stepped))
    counts_P = torch.tensor([2, 1] if fused_first else [1, 2])
    pair.states, pair.rows = [join_rows([*both], counts_P) for both in states], 3
    pair.go_on()


@torch.inference_mode()
@pytest.mark.parametrize("name", [name for name, config in MODELS.items() if config.kind == "encoder-decoder"])
@pytest.mark.parametrize("padding", ["none", "behind", "before", "a row of nothing else"])
def test_a_fused_encoder_equals_the_plain_one(name: str, padding: str) -> None:
    plain, fused = two(name)
    mask_BS = torch.arange(7) < torch.tensor([7, 3, 1, 0 if padding.startswith("a row") else 5])[:, None]
    if padding == "before":
        mask_BS = mask_BS.flip(1)
    given = None if padding == "none" else mask_BS
    source_BS = torch.randint(4, 30, mask_BS.shape)
    found = [model.encode(source_BS, given).x_BSD for model in (plain, fused)]
    seen = torch.ones_like(mask_BS) if given is None else given
    assert_close(found[1][seen], found[0][seen], atol=2e-5, rtol=1e-4)
    assert found[1].isfinite().all()


@torch.inference_mode()
def test_a_fused_classifier_equals_the_plain_one() -> None:
    made = []
    for _ in range(2):
        torch.manual_seed(3)
        made.append(EncoderConfig(**SHAPE, layers=2).build(Sizes(30, 5)).eval())
    optimize_for_inference(made[1])
    source_BS, mask_BS = sources(5, random.Random(1))
    right, said = (model.classify(source_BS, mask_BS) for model in made)
    assert_close(said, right, atol=2e-5, rtol=1e-4)


def test_maps_and_gradients_fall_back_to_the_blocks() -> None:
    plain, fused = two("the paper's")
    source_BS, mask_BS = sources(2, random.Random(1))
    maps: list[list[Tensor]] = []
    for model in (plain, fused):
        found: list[Tensor] = []
        with torch.inference_mode():
            _, state = model.advance(torch.tensor([1, 1]), model.condition(source_BS, mask_BS))
            with send_maps_to(lambda _, weights, found=found: found.append(weights)):
                model.encode(source_BS, mask_BS)
                model.advance(torch.tensor([5, 6]), state)
        maps.append(found)
    assert len(maps[0]) == 2 + 4
    for right, said in zip(*maps, strict=True):
        assert_close(said, right, atol=2e-5, rtol=1e-4)
    with torch.enable_grad():
        assert fused.encode(source_BS, mask_BS).x_BSD.requires_grad


def test_what_the_kernel_does_not_compute_is_not_fused() -> None:
    """Something that a block, mixer or position gets later is not lost."""
    for place in ("decoder.blocks.0", "decoder.blocks.0.mixer", "decoder.blocks.1.mixer.position"):
        model = DecoderConfig(**LLAMA, layers=2).build(Sizes(0, 30)).eval()
        model.get_submodule(place).__dict__["new_setting"] = 1
        optimize_for_inference(model)
        with torch.inference_mode():
            _, state = model.advance(torch.tensor([1]), model.start())
        assert not isinstance(state, FusedState)


def test_other_stacks_are_not_fused() -> None:
    for mixer in (LinearConfig(heads=3), [SoftmaxConfig(heads=3), LinearConfig(heads=3)]):
        model = DecoderConfig(**{**SHAPE, "mixer": mixer}, layers=2).build(Sizes(0, 30)).eval()
        optimize_for_inference(model)
        with torch.inference_mode():
            _, state = model.advance(torch.tensor([1]), model.start())
        assert not isinstance(state, FusedState)
