"""What the past leaves behind: values that share buffers without disturbing each other."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from allyouneed.mixers.parts.state import SLACK, Growable, join_rows, run_by_length, select_rows


def piece(size: int, requires_grad: bool = False) -> Tensor:
    return torch.randn(2, size, 4, requires_grad=requires_grad)


@given(
    seed=st.integers(0, 2**31),
    moves=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 5), st.sampled_from(["append", "select", "forget"])), max_size=25
    ),
    gradients=st.booleans(),
)
def test_growing_is_concatenating(seed: int, moves: list[tuple[int, int, str]], gradients: bool) -> None:
    """Any tree of appends, selections and forgetting: each version ever made keeps what it held."""
    torch.manual_seed(seed)
    first = piece(3, gradients)
    versions = [(Growable(first), first)]
    for parent, size, move in moves:
        growable, plain = versions[parent % len(versions)]
        if move == "forget":
            versions.append((growable.keep_last(size), plain[:, -size:]))
        elif move == "select":
            rows_B = torch.randint(2, (2,))
            versions.append((growable.select(rows_B), plain[rows_B]))
        else:
            new = piece(size, gradients)
            versions.append((growable.append(new), torch.cat([plain, new], dim=1)))
    for growable, plain in versions:
        assert growable.length == plain.shape[1]
        assert torch.equal(growable.tensor, plain)


def test_growing_copies_seldom() -> None:
    """Amortised constant cost: 1,000 appends move the buffer a logarithmic number of times, not 1,000."""
    growable, places = Growable(piece(1)), set()
    for _ in range(1000):
        growable = growable.append(piece(1))
        places.add(growable._buffer.data_ptr())
    assert growable.length == 1001
    assert len(places) < 16
    assert growable._buffer.shape[1] < 2 * 1001 + SLACK


def test_gradients_flow_through_appends() -> None:
    parts = [piece(size, requires_grad=True) for size in (2, 1, 3)]
    grown = Growable(parts[0])
    for part in parts[1:]:
        grown = grown.append(part)
    noise = torch.randn_like(grown.tensor)
    gradients = torch.autograd.grad(grown.tensor, parts, noise)
    assert torch.equal(torch.cat(gradients, dim=1), noise)


def test_selecting_keeps_the_slack() -> None:
    grown = Growable(piece(1)).append(piece(1))
    chosen = grown.select(torch.tensor([1, 0, 0]))
    longer = chosen.append(torch.randn(3, 1, 4))
    assert longer._buffer.data_ptr() == chosen._buffer.data_ptr()


@dataclass(frozen=True)
class Leaf:
    x_BD: Tensor
    count: int


@dataclass(frozen=True)
class Branch:
    leaves: tuple[Leaf, ...]
    grown: Growable
    nothing: None = None


def test_rows_of_any_nested_state_can_be_selected() -> None:
    state = [Branch((Leaf(torch.arange(6.0).view(2, 3), 7), Leaf(torch.ones(2, 1), 8)), Growable(piece(2)))]
    rows_B = torch.tensor([1, 1, 0])
    (chosen,) = select_rows(state, rows_B)
    assert torch.equal(chosen.leaves[0].x_BD, state[0].leaves[0].x_BD[rows_B])
    assert [leaf.count for leaf in chosen.leaves] == [7, 8]
    assert torch.equal(chosen.grown.tensor, state[0].grown.tensor[rows_B])
    assert chosen.nothing is None


def test_rows_of_any_nested_state_can_be_joined() -> None:
    state = [Leaf(torch.arange(6.0).view(3, 2), 7), None]
    parts = [select_rows(state, torch.tensor(rows)) for rows in ([0], [1, 2])]
    leaf, nothing = join_rows(parts)
    assert torch.equal(leaf.x_BD, state[0].x_BD)
    assert leaf.count == 7
    assert nothing is None
    assert join_rows([Leaf(torch.ones(1, 2), 7), Leaf(torch.ones(2, 2), 8)], torch.tensor([1, 2])).count.tolist() == [
        7,
        8,
        8,
    ]
    with pytest.raises(TypeError, match="number of rows of each state"):
        join_rows([Leaf(torch.ones(1, 2), 7), Leaf(torch.ones(1, 2), 8)])
    with pytest.raises(TypeError, match="object cannot be joined"):
        join_rows([object(), object()])


def test_joined_buffers_keep_what_is_newest_last_and_go_on() -> None:
    long, short = Growable(torch.ones(1, 3, 2)).append(torch.full((1, 1, 2), 2.0)), Growable(torch.full((2, 1, 2), 3.0))
    joined = join_rows([long.keep_last(3), short])
    assert joined.tensor[..., 0].tolist() == [[1, 1, 2], [0, 0, 3], [0, 0, 3]]
    assert joined.append(torch.full((3, 1, 2), 4.0)).tensor[:, -1, 0].tolist() == [4, 4, 4]
    assert joined.tensor[..., 0].tolist() == [[1, 1, 2], [0, 0, 3], [0, 0, 3]]


@pytest.mark.parametrize("lengths", [[2, 0, 3, 3, 1], [0, 0], [4]])
def test_every_row_runs_its_own_number_of_steps(lengths: list[int]) -> None:
    """The rows come with their numbers, each as long as it has steps left, and go back to their places."""
    done: list[tuple[int, int]] = []

    def run(state: Leaf, rows_P: Tensor, steps: slice) -> Leaf:
        assert torch.equal(state.x_BD[:, 0].long(), rows_P)
        done.extend((row, step) for row in rows_P.tolist() for step in range(steps.start, steps.stop))
        return Leaf(state.x_BD + torch.tensor([0.0, steps.stop - steps.start]), state.count)

    begun_B2 = torch.stack([torch.arange(len(lengths)), torch.zeros(len(lengths))], dim=1)
    after = run_by_length(torch.tensor(lengths), Leaf(begun_B2, 7), run)
    assert sorted(done) == [(row, step) for row, length in enumerate(lengths) for step in range(length)]
    assert after.x_BD.tolist() == [[row, length] for row, length in enumerate(lengths)]
