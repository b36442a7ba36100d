"""Clause 2 of the mixer contract: the future changes nothing, and any chunking through `state` equals the whole."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mixer_contracts import (
    CASES,
    WIDTH,
    Case,
    Read,
    assert_close_with_gradients,
    causal_cases,
    declared_cost,
    few,
    inputs,
    masks,
    run,
    seeds,
)

from allyouneed.mixers import Memory, select_rows


@causal_cases
@few
@given(seed=seeds, length=st.integers(2, 9), data=st.data())
def test_the_future_changes_nothing(case: Case, seed: int, length: int, data: st.DataObject) -> None:
    torch.manual_seed(seed)
    cut = data.draw(st.integers(1, length - 1), label="first changed position")
    mixer = case.build()
    x_BTD = torch.randn(2, length, WIDTH, dtype=torch.float64)
    other_BTD = torch.cat([x_BTD[:, :cut], torch.randn_like(x_BTD[:, cut:])], dim=1)
    with torch.no_grad():
        y_BTD, z_BTD = mixer(x_BTD)[0], mixer(other_BTD)[0]
    torch.testing.assert_close(y_BTD[:, :cut], z_BTD[:, :cut], rtol=1e-12, atol=1e-12)
    # A position that reads only others may find no slot, or a single one whose value it returns whatever it holds.
    blind = case.config.reads_by_content or declared_cost(case, length).path is None
    blind = blind and not case.config.reads_itself
    assert blind or not torch.equal(y_BTD[:, cut:], z_BTD[:, cut:])


@causal_cases
@few
@given(
    seed=seeds,
    chunks=st.lists(st.integers(1, 4), min_size=1, max_size=5) | st.just([1] * 20),
    padded=st.booleans(),
    gradients=st.booleans(),
)
def test_any_chunking_equals_the_whole(case: Case, seed: int, chunks: list[int], padded: bool, gradients: bool) -> None:
    torch.manual_seed(seed)
    mixer, length = case.build(), sum(chunks)
    x_BTD = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=gradients)
    mask_BT = torch.rand(2, length) < 0.7 if padded else None
    with torch.set_grad_enabled(gradients):
        whole_BTD, _ = mixer(x_BTD, mask_BT=mask_BT)
        pieces, state = [], None
        starts = [sum(chunks[:i]) for i in range(len(chunks))]
        for start, size in zip(starts, chunks, strict=True):
            now = slice(start, start + size)
            piece_BTD, state = mixer(x_BTD[:, now], mask_BT=None if mask_BT is None else mask_BT[:, now], state=state)
            pieces.append(piece_BTD)
    chunked_BTD = torch.cat(pieces, dim=1)
    counts = torch.ones(2, length, dtype=torch.bool) if mask_BT is None else mask_BT
    torch.testing.assert_close(chunked_BTD[counts], whole_BTD[counts], rtol=1e-10, atol=1e-10)
    if gradients and counts.any():
        sources = [x_BTD, *mixer.parameters()]
        assert_close_with_gradients(chunked_BTD[counts], whole_BTD[counts], sources, 1e-9)


@pytest.mark.parametrize("case", [c for c in CASES if c.role != "bidirectional"], ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_advancing_by_single_positions_equals_the_whole(case: Case, padded: bool) -> None:
    """From the first position on, and after a beginning that may be padded."""
    mixer = case.build()
    x_BTD, memory_BSD = inputs(case, B=4, T=9)
    valid = masks(4, 3, 2) if padded else None  # of the memory, or of the first five positions
    memory, begin, state = None, 0, None
    with torch.no_grad():
        if memory_BSD is not None:
            memory = Memory(memory_BSD, valid)
            whole_BTD, _ = mixer(x_BTD, memory=memory)
        elif valid is not None:
            begin = 5
            whole_BTD, _ = mixer(x_BTD, mask_BT=torch.cat([valid, torch.ones_like(valid[:, :4])], dim=1))
            _, state = mixer(x_BTD[:, :begin], mask_BT=valid)
        else:
            whole_BTD, _ = mixer(x_BTD)
        for t in range(begin, 9):
            y_BD, state = mixer.advance(x_BTD[:, t], state=state, memory=memory)
            torch.testing.assert_close(y_BD, whole_BTD[:, t], rtol=1e-10, atol=1e-10)


@causal_cases
@pytest.mark.parametrize("gradients", [False, True], ids=["without gradients", "with gradients"])
def test_states_are_values(case: Case, gradients: bool) -> None:
    """Going on from an old state any number of times, in any order, gives the same answers."""
    mixer = case.build()
    x_BTD = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    with torch.set_grad_enabled(gradients):
        whole_BTD, _ = mixer(x_BTD)
        states = [None]
        for t in range(9):
            states.append(mixer(x_BTD[:, t : t + 1], state=states[-1])[1])
            mixer(torch.randn(2, 3, WIDTH, dtype=torch.float64), state=states[-1])  # another future
        for t in [5, 0, 8, 3, 5]:
            rest_BTD, _ = mixer(x_BTD[:, t:], state=states[t])
            torch.testing.assert_close(rest_BTD, whole_BTD[:, t:], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", [c for c in CASES if c.role != "bidirectional"], ids=str)
@few
@given(
    seed=seeds,
    selections=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=3)
    | st.just([[0, 0, 1, 1, 2, 2], [1, 0, 2, 3, 5, 5], [0, 1, 4, 5]]),
    padded=st.booleans(),
)
def test_selected_rows_go_on_as_if_they_were_alone(
    case: Case, seed: int, selections: list[list[int]], padded: bool
) -> None:
    """As beam search does it: rows are repeated, permuted and dropped, step after step."""
    torch.manual_seed(seed)
    mixer = case.build()
    x_BTD, memory_BSD = inputs(case, B=3, T=3)
    valid = masks(3, 2, 1 if memory_BSD is None else 3) if padded else None
    with torch.no_grad():
        _, state = run(mixer, x_BTD, Read(memory_BSD, valid))
        text_BTD, origin_B = x_BTD, torch.arange(3)
        for selection in selections:
            rows_B = torch.tensor(selection) % len(origin_B)
            origin_B, text_BTD, state = origin_B[rows_B], text_BTD[rows_B], select_rows(state, rows_B)
            new_BTD = torch.randn(len(rows_B), 2, WIDTH, dtype=torch.float64)
            first_BD, state = mixer.advance(new_BTD[:, 0], state=state)
            second_BD, state = mixer.advance(new_BTD[:, 1], state=state)
            y_BTD = torch.stack([first_BD, second_BD], dim=1)
            text_BTD = torch.cat([text_BTD, new_BTD], dim=1)
        whole_valid = None if valid is None else valid[origin_B]
        if memory_BSD is not None:
            read = Read(memory_BSD[origin_B], whole_valid)
        else:
            new = text_BTD.shape[1] - 3
            ones = torch.ones(len(origin_B), new, dtype=torch.bool)
            read = Read(None, None if whole_valid is None else torch.cat([whole_valid, ones], dim=1))
        whole_BTD, _ = run(mixer, text_BTD, read)
    torch.testing.assert_close(y_BTD, whole_BTD[:, -2:], rtol=1e-10, atol=1e-10)
