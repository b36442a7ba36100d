"""Transformer-XL: the shift, what the memory holds, and that its length is no part of the weights."""

import pytest
import torch

from allyouneed.mixers import select_rows
from allyouneed.mixers.base import send_maps_to
from allyouneed.mixers.xl import XL, XLConfig, XLState, shift

WIDTH = 12


def built(**settings: int) -> XL:
    mixer = XLConfig(heads=3, **settings).build(WIDTH).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(std=0.4)
    return mixer


@pytest.mark.parametrize(
    ("T", "first", "keys", "R"), [(3, 4, 7, 5), (1, 0, 1, 1), (4, 0, 4, 4), (5, 2, 7, 3), (2, 6, 3, 8)]
)
def test_the_shift_gives_each_pair_the_score_of_its_distance(T: int, first: int, keys: int, R: int) -> None:
    score = torch.randn(2, 3, T, R)
    shifted = shift(score, first, keys)
    assert shifted.shape == (2, 3, T, keys)
    for t in range(T):
        for s in range(keys):
            distance = first + t - s
            expected = score[:, :, t, R - 1 - distance] if 0 <= distance < R else torch.zeros(2, 3)
            assert torch.equal(shifted[:, :, t, s], expected)


@pytest.mark.parametrize("memory", [1, 5, 16, 40])
def test_long_sequences_in_blocks_equal_single_steps(memory: int) -> None:
    """Long enough for inner blocks, whole and in large chunks."""
    mixer, x_BTD = built(memory=memory), torch.randn(2, 131, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        whole_BTD, state = mixer(x_BTD)[0], None
        steps = []
        for t in range(131):
            y_BD, state = mixer.advance(x_BTD[:, t], state=state)
            steps.append(y_BD)
        torch.testing.assert_close(torch.stack(steps, dim=1), whole_BTD)
        first_BTD, state = mixer(x_BTD[:, :50])
        torch.testing.assert_close(torch.cat([first_BTD, mixer(x_BTD[:, 50:], state=state)[0]], dim=1), whole_BTD)


def test_a_position_reads_exactly_its_memory() -> None:
    mixer, x_BTD = built(memory=4), torch.randn(1, 40, WIDTH, dtype=torch.float64)
    maps: list[torch.Tensor] = []
    with send_maps_to(lambda _, alpha: maps.append(alpha)):
        mixer(x_BTD)
    apart = torch.arange(40)[:, None] - torch.arange(40)
    assert torch.equal((maps[0] > 0).all(dim=1)[0], (apart >= 0) & (apart <= 4))


def test_the_memory_is_no_part_of_the_weights() -> None:
    short, long = built(memory=3), XLConfig(heads=3, memory=30).build(WIDTH).double()
    long.load_state_dict(short.state_dict())
    x_BTD = torch.randn(1, 20, WIDTH, dtype=torch.float64)
    same_T = (short(x_BTD)[0] == long(x_BTD)[0]).all(dim=2)[0]
    near = torch.isclose(short(x_BTD)[0], long(x_BTD)[0]).all(dim=2)[0]
    assert near[:4].all()
    assert not same_T[4:].any()


def test_a_detached_memory_still_teaches_the_weights_that_read_it() -> None:
    """What is kept for training are vectors, not keys: Dai et al. stop the gradient at h, not at W_k."""
    mixer, x_BTD = built(memory=4), torch.randn(1, 8, WIDTH, dtype=torch.float64, requires_grad=True)
    _, state = mixer(x_BTD[:, :4])
    state = XLState(type(state.cache)(state.cache.tensor.detach()), state.projected)
    y_BTD, _ = mixer(x_BTD[:, 4:5], state=state)
    # Of the first new position, which reads four remembered ones, and in which the new key stands for itself.
    gradient_BTD, weight_ND = torch.autograd.grad(y_BTD.square().sum(), [x_BTD, mixer.project.query_key_value.weight])
    assert (gradient_BTD[:, :4] == 0).all()

    def loss(memory_BTD: torch.Tensor) -> torch.Tensor:
        whole_BTD = torch.cat([memory_BTD, x_BTD[:, 4:5]], dim=1)
        last_BTD: torch.Tensor = mixer(whole_BTD)[0][:, -1:]
        return last_BTD.square().sum()

    (expected_ND,) = torch.autograd.grad(loss(x_BTD[:, :4].detach()), [mixer.project.query_key_value.weight])
    torch.testing.assert_close(weight_ND, expected_ND)


def test_states_of_training_and_of_decoding_continue_each_other() -> None:
    mixer, x_BTD = built(memory=5), torch.randn(2, 9, WIDTH, dtype=torch.float64)
    whole_BTD, _ = mixer(x_BTD)
    _, trained = mixer(x_BTD[:, :6])
    with torch.no_grad():
        _, decoded = mixer(x_BTD[:, :6])
        torch.testing.assert_close(mixer(x_BTD[:, 6:], state=trained)[0], whole_BTD[:, 6:])
    torch.testing.assert_close(mixer(x_BTD[:, 6:], state=decoded)[0], whole_BTD[:, 6:])
    assert not trained.projected
    assert decoded.projected
    picked = select_rows(decoded, torch.tensor([1]))
    torch.testing.assert_close(mixer(x_BTD[1:, 6:], state=picked)[0], whole_BTD[1:, 6:])


def test_a_long_sequence_needs_no_square_matrix() -> None:
    mixer = XLConfig(heads=1, memory=16).build(8)
    with torch.no_grad():
        sizes: list[int] = []

        class Watch(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
                out = func(*args, **(kwargs or {}))
                if isinstance(out, torch.Tensor):
                    sizes.append(out.numel())
                return out

        with Watch():
            mixer(torch.randn(1, 20_000, 8))
    assert max(sizes) < 20_000 * 200


def test_stretched_training_reads_the_memory_and_the_whole_segment() -> None:
    """The authors' training: as a memory that is longer by the segment. Evaluation reads exactly the memory."""
    stretched, exact, long = (
        XLConfig(heads=3, memory=memory, stretch=stretch).build(WIDTH).double()
        for memory, stretch in ((5, True), (5, False), (11, False))
    )
    exact.load_state_dict(stretched.state_dict())
    long.load_state_dict(stretched.state_dict())
    x_BTD = torch.randn(2, 16, WIDTH, dtype=torch.float64)
    _, state = stretched(x_BTD[:, :9])
    wanted_BTD, _ = long(x_BTD[:, 9:], state=state)
    torch.testing.assert_close(stretched(x_BTD[:, 9:], state=state)[0], wanted_BTD)
    with torch.no_grad():
        _, state = stretched(x_BTD[:, :9])
        torch.testing.assert_close(stretched(x_BTD[:, 9:], state=state)[0], wanted_BTD)
    torch.testing.assert_close(stretched.eval()(x_BTD)[0], exact(x_BTD)[0])
