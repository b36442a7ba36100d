"""Dropout from random bytes: the right rate everywhere, the right scale, the same masks from the same seed."""

import threading

import pytest
import torch
from torch import Tensor, nn

from allyouneed.dropout import Dropout, dropout_mask, seed_dropout
from waiting import PATIENCE

MANY = 1 << 20


@pytest.fixture(autouse=True)
def _seeded() -> None:
    seed_dropout(7)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_the_rate_is_right_at_every_byte_of_a_word(p: float) -> None:
    """Eight elements come from one 64-bit word; a generator that drops a bit would show up in one of the eight."""
    dropped_N8 = (dropout_mask(torch.empty(MANY), p) == 0).view(-1, 8)
    rounded = round(p * 256) / 256
    spread = (rounded * (1 - rounded) / dropped_N8.shape[0]) ** 0.5
    for rate in dropped_N8.float().mean(dim=0).tolist():
        assert abs(rate - rounded) < 5 * spread


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_scale_keeps_the_expectation(p: float, dtype: torch.dtype) -> None:
    mask = dropout_mask(torch.empty(MANY, dtype=dtype), p)
    assert mask.dtype == dtype
    kept = 256 - min(round(p * 256), 255)
    assert set(mask.tolist()) <= {0.0, float(torch.tensor(256 / kept, dtype=dtype))}
    spread = ((256 / kept - 1) / MANY) ** 0.5
    assert float(mask.double().mean()) == pytest.approx(1.0, abs=5 * spread + (4e-3 if dtype == torch.bfloat16 else 0))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 9), (0, 4)])
def test_any_shape_is_supported(shape: tuple[int, ...]) -> None:
    assert dropout_mask(torch.empty(shape), 0.5).shape == shape


def test_the_gradient_passes_where_the_value_does() -> None:
    layer, x = Dropout(0.4), torch.ones(1000, requires_grad=True)
    y = layer(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y.detach())
    assert 0 < int((y == 0).sum()) < 1000


def test_add_is_the_residual_form() -> None:
    layer, x, y = Dropout(0.4), torch.randn(50, 3), torch.randn(50, 3)
    seed_dropout(3)
    apart = x + layer(y)
    seed_dropout(3)
    torch.testing.assert_close(layer.add(x, y), apart)


def test_masks_follow_from_the_seed() -> None:
    def masks(seed: int) -> list[Tensor]:
        seed_dropout(seed)
        return [dropout_mask(torch.empty(100), 0.5) for _ in range(2)]

    first, again, other = masks(1), masks(1), masks(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])


def test_masks_do_not_touch_the_global_generator() -> None:
    before = torch.get_rng_state()
    dropout_mask(torch.empty(100), 0.5)
    assert torch.equal(torch.get_rng_state(), before)


def test_threads_do_not_disturb_each_other() -> None:
    """Micro-batches run in parallel threads; the masks of each depend only on its seed."""

    def draw(seed: int, into: dict[int, Tensor], turn: threading.Barrier | None) -> None:
        seed_dropout(seed)
        parts = []
        for _ in range(20):
            if turn is not None:
                turn.wait(timeout=PATIENCE)
            parts.append(dropout_mask(torch.empty(64), 0.5))
        into[seed] = torch.stack(parts)

    alone: dict[int, Tensor] = {}
    together: dict[int, Tensor] = {}
    for seed in (1, 2):
        draw(seed, alone, None)
    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=draw, args=(seed, together, barrier)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(alone[seed], together[seed]) for seed in (1, 2))


def test_evaluation_drops_nothing() -> None:
    x, y = torch.randn(9, 5), torch.randn(9, 5)
    for layer in (Dropout(0.5).eval(), Dropout(0.0)):
        assert layer(y) is y
        assert torch.equal(layer.add(x, y), x + y)


def test_dropout_has_no_parameters() -> None:
    assert list(nn.Sequential(Dropout(0.1)).state_dict()) == []
