"""The contract of a model, once for all of them: every line of MODELS is held to the same laws.

A new architecture adds its small settings to `SMALL`. Those that generate are decoded by the same search; those that
only classify are held to the laws of sources.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from allyouneed.config import parse
from allyouneed.decode import SearchConfig, score, search
from allyouneed.mixers import select_rows
from allyouneed.models import MODELS, Model
from allyouneed.shortlist.table import Shortlist
from allyouneed.sizes import Sizes
from allyouneed.text.specials import EOS

SOURCE, TARGET = 11, 13  # ids

# Small settings of every architecture, several where branches differ.
SOFTMAX = {"mixer": {"type": "softmax", "heads": 3}, "width": 12, "hidden": 20, "dropout": 0.0}
NARROW = {"mixer": {"type": "softmax", "heads": 2, "window": 2}, "positions": {"type": "rotary", "pairs": 2}}
BYTENET = {"width": 12, "dilations": [1, 3], "encoder_sets": 1, "decoder_sets": 2}
CONVS2S = {"width": 12, "channels": 10, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
NTM = {"hidden": 6, "slots": 5, "slot_width": 4}
IMAGES = {"size": 3, "channels": 1, "filters": [6]}  # 9 values, then the mark of the end
SMALL: dict[str, list[dict[str, Any]]] = {
    "encoder-decoder": [{**SOFTMAX, "encoder_layers": 1, "decoder_layers": 2}],
    "decoder": [
        {**SOFTMAX, "layers": 2},
        {**SOFTMAX, "layers": 2, "norm": "pre", "streams": 2, "tied": False},
        {**SOFTMAX, **NARROW, "layers": 2, "norm": "pre", "parallel": True, "logit_cap": 0.5, "output_bias": True},
    ],
    "encoder": [{**SOFTMAX, "layers": 2, "projection": True}],
    "seq2seq": [
        {"cell": "lstm", "width": 8, "layers": 2, "reverse": True},
        {"cell": "rnn", "width": 8, "embedding": 5},
        {"attention": "bahdanau", "cell": "gru", "width": 8, "embedding": 6},
        {"attention": "bahdanau", "cell": "lstm", "width": 7},
        {"attention": "luong-dot", "cell": "lstm", "width": 8, "layers": 2},
        {"attention": "luong-general", "cell": "gru", "width": 8, "reverse": True},
        {"attention": "luong-concat", "cell": "rnn", "width": 8, "embedding": 5, "layers": 2},
    ],
    "bytenet": [
        {**BYTENET},
        {**BYTENET, "block": "multiplicative", "kernel": 2, "unfold_more": 1},
    ],
    "convs2s": [
        {**CONVS2S},
        {**CONVS2S, "kernel": 2, "positions": "sinusoidal", "encoder_layers": 1, "tied": True},
    ],
    "memn2n": [
        {"width": 6},
        {"width": 6, "tying": "layer-wise", "words": "bag", "memory": 2},
        {"width": 6, "hops": 2, "linear_start": 1, "noise": 0.0},
    ],
    "ntm": [
        {**NTM, "embedding": "bits", "bits": 3},
        {**NTM, "embedding": "bits", "bits": 2, "feedback": True, "controller": "feedforward"},
        {**NTM, "read_heads": 2, "write_heads": 3, "feedback": True},
        {**NTM, "read_heads": 0, "slots": 3, "slot_width": 1},
    ],
    "neural-gpu": [
        {"rows": 3, "channels": 7, "layers": 2, "dropout": 0.0},
        {"rows": 1, "channels": 7, "layers": 1, "diagonal": True, "limits": "hard", "dropout": 0.0},
        {"decoder": "tape", "rows": 3, "channels": 7, "layers": 2, "dropout": 0.0},
        {"decoder": "tape", "rows": 1, "channels": 7, "layers": 1, "diagonal": True, "unfold": 1.5, "dropout": 0.0},
    ],
    "vit": [
        {**SOFTMAX, "layers": 2, "size": 6, "patch": 3, "positions": {"type": "learned", "max_length": 5}},
        {
            **SOFTMAX,
            "layers": 1,
            "size": 3,
            "channels": 3,
            "patch": 1,
            "positions": "rotary",
            "pool": "mean",
            "transform": "tanh",
            "embedding_norm": True,
            "mean": [0.4, 0.5, 0.6],
        },
    ],
    "show-attend-tell": [
        {**IMAGES, "decoder": {"type": "lstm", "width": 8, "embedding": 5, "dropout": 0.0}},
        {**IMAGES, "size": 5, "decoder": {"type": "transformer", **SOFTMAX}, "filters": [6, 5]},  # 4 cells
        {**IMAGES, "decoder": {"type": "lstm", "width": 8, "embedding": 5, "dropout": 0.0}, "blind": True},
    ],
}


@dataclass(frozen=True)
class Case:
    """One architecture with some settings."""

    name: str
    number: int

    def build(self) -> Model:
        """In float64 without dropout, with random numbers in every parameter."""
        model = parse(MODELS[self.name], SMALL[self.name][self.number]).build(Sizes(SOURCE, TARGET)).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.normal_(std=0.3)
        return model

    def __str__(self) -> str:
        return f"{self.name}{self.number}"


# Weights that some settings or texts of these tests leave without work, and so without gradient.
UNREACHED: dict[str, tuple[str, ...]] = {
    "ntm3": ("heads.",),  # nothing is read
    "show-attend-tell2": ("decoder.begin", "decoder.cross", "decoder.gate", "decoder.context"),  # blind
}
CASES = [Case(name, number) for name, all_settings in SMALL.items() for number in range(len(all_settings))]
GENERATING = [case for case in CASES if MODELS[case.name].kind != "encoder"]
every_case = pytest.mark.parametrize("case", CASES, ids=str)
generating = pytest.mark.parametrize("case", GENERATING, ids=str)


def texts(B: int = 3, S: int = 5, T: int = 7) -> tuple[Tensor, Tensor]:
    return torch.randint(4, SOURCE, (B, S)), torch.randint(4, TARGET, (B, T))


def answer(model: Model, source_BS: Tensor, target_BT: Tensor, mask_BS: Tensor | None = None) -> Tensor:
    """Logits for every token of the target, or for the classes."""
    if model.kind == "encoder":
        return model.classify(source_BS, mask_BS)
    return model.step(target_BT, model.condition(source_BS, mask_BS))[0]


def assert_close(one: Tensor, two: Tensor) -> None:
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_every_model_is_under_contract() -> None:
    assert set(SMALL) == set(MODELS)


@settings(max_examples=5)
@generating
@given(seed=st.integers(0, 2**31), chunks=st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_any_chunking_is_the_whole(case: Case, seed: int, chunks: list[int]) -> None:
    torch.manual_seed(seed)
    model, (source_BS, target_BT) = case.build(), texts(T=sum(chunks))
    with torch.no_grad():
        whole_BTV, _ = model.step(target_BT, model.condition(source_BS))
        state, pieces = model.condition(source_BS), []
        for chunk_BT in target_BT.split(chunks, dim=1):
            logits_BTV, state = model.step(chunk_BT, state)
            pieces.append(logits_BTV)
        state, one_by_one = model.condition(source_BS), []
        for token_B in target_BT.unbind(dim=1):
            logits_BV, state = model.advance(token_B, state)
            one_by_one.append(logits_BV)
    assert whole_BTV.shape == (3, sum(chunks), TARGET)
    assert_close(torch.cat(pieces, dim=1), whole_BTV)
    assert_close(torch.stack(one_by_one, dim=1), whole_BTV)


@generating
def test_the_future_changes_nothing(case: Case) -> None:
    model, (source_BS, target_BT) = case.build(), texts()
    changed_BT = torch.cat([target_BT[:, :4], 4 + (target_BT[:, 4:] - 3) % (TARGET - 4)], dim=1)
    with torch.no_grad():
        assert_close(answer(model, source_BS, target_BT)[:, :4], answer(model, source_BS, changed_BT)[:, :4])


@settings(max_examples=5)
@every_case
@given(seed=st.integers(0, 2**31))
def test_padding_of_sources_and_other_rows_change_nothing(case: Case, seed: int) -> None:
    torch.manual_seed(seed)
    model, (source_BS, target_BT) = case.build(), texts()
    length_B = torch.randint(1, 6, (3,))
    mask_BN = torch.arange(8) < length_B[:, None]
    padded_BN = torch.randint(SOURCE, (3, 8))
    padded_BN[:, :5] = source_BS
    with torch.no_grad():
        together = answer(model, padded_BN, target_BT, mask_BN)
        for row, length in enumerate(length_B.tolist()):
            here = slice(row, row + 1)
            assert_close(answer(model, source_BS[here, :length], target_BT[here]), together[here])


@generating
def test_selected_rows_go_on(case: Case) -> None:
    model, (source_BS, target_BT) = case.build(), texts()
    rows_B = torch.tensor([2, 2, 0, 1])
    with torch.no_grad():
        _, state = model.step(target_BT[:, :4], model.condition(source_BS))
        after_BTV, _ = model.step(target_BT[rows_B, 4:], select_rows(state, rows_B))
        whole_BTV = answer(model, source_BS[rows_B], target_BT[rows_B])
        fresh_BTV, _ = model.step(target_BT[rows_B], select_rows(model.condition(source_BS), rows_B))
    assert_close(after_BTV, whole_BTV[:, 4:])
    assert_close(fresh_BTV, whole_BTV)


@generating
def test_states_are_values(case: Case) -> None:
    """A state that is continued twice gives the same both times: beam search does so."""
    model, (source_BS, target_BT) = case.build(), texts()
    with torch.no_grad():
        _, state = model.step(target_BT[:, :3], model.condition(source_BS))
        first_BTV, _ = model.step(target_BT[:, 3:], state)
        model.step(target_BT[:, 3:].flip(1), state)
        assert_close(model.step(target_BT[:, 3:], state)[0], first_BTV)


@every_case
def test_gradients_are_finite_and_reach_every_weight(case: Case) -> None:
    model, (source_BS, target_BT) = case.build().train(), texts(S=9 if case.name == "show-attend-tell" else 24, T=40)
    answer(model, source_BS, target_BT).square().mean().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert bool(parameter.grad.isfinite().all()), name
            assert bool(parameter.grad.any()) or name.startswith(UNREACHED.get(str(case), ())), name


@every_case
def test_declared_flops_are_those_counted(case: Case) -> None:
    model, (source_BS, target_BT) = case.build(), texts(B=1)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        if model.kind == "decoder":  # the source is the beginning of the text; only the target is projected
            x_BTD, _ = model.hidden(torch.cat([source_BS, target_BT], dim=1), model.start())
            model.head(x_BTD[:, 5:])
        else:
            answer(model, source_BS, target_BT)
    assert model.flops(5, 7) == counter.get_total_flops()


@generating
def test_the_same_search_decodes_it(case: Case) -> None:
    model = case.build()
    sources = [[5, 6, 7, EOS], [8, EOS], [4, 9, 5, 6, 4, EOS]]
    with torch.no_grad():
        for beam in (1, 3):
            together = search(model, sources, SearchConfig(beam=beam, max_length=6))
            alone = [search(model, [source], SearchConfig(beam=beam, max_length=6))[0] for source in sources]
            assert [found[0].ids for found in together] == [found[0].ids for found in alone]
        best = [found[0] for found in together]
        said = [[*found.ids, EOS] if found.finished else found.ids for found in best]
        scored = score(model, list(zip(sources, said, strict=True)), ended=False)
    for found, wanted in zip(best, scored, strict=True):
        assert found.logprob == pytest.approx(sum(wanted.token_logprobs), abs=1e-5)


@generating
def test_a_shortlist_bars_words_and_changes_nothing_else(case: Case) -> None:
    model = case.build()
    sources = [[5, 6, 7, EOS], [8, EOS], [4, 9, 5, 6, 4, EOS]]
    ends = torch.arange(1, SOURCE + 1)
    one_each = Shortlist(torch.arange(4), 4 + torch.arange(SOURCE) % (TARGET - 4), ends)  # word w allows one word
    every = Shortlist(torch.arange(TARGET), one_each.words, ends)
    for beam in (1, 3):
        config = SearchConfig(beam=beam, max_length=6)
        assert search(model, sources, config, shortlist=every) == search(model, sources, config)
        together = search(model, sources, config, shortlist=one_each)
        for source, found in zip(sources, together, strict=True):
            assert {*found[0].ids} <= {3, *(4 + word % (TARGET - 4) for word in source)}
            alone = search(model, [source], config, shortlist=one_each)[0][0]
            assert found[0].ids == alone.ids
            assert found[0].logprob == pytest.approx(alone.logprob, abs=1e-5)


@every_case
def test_half_precision_gives_nearly_the_same(case: Case) -> None:
    """Mixed precision, as `train.precision = "bfloat16"` asks for it."""
    model, (source_BS, target_BT) = case.build().float(), texts()
    with torch.no_grad():
        whole = answer(model, source_BS, target_BT)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = answer(model, source_BS, target_BT).float()
    assert float((rounded - whole).abs().mean()) < 0.1 * float(whole.abs().mean()) + 0.02
