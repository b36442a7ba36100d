"""Budgets, schedules, optimisers, averages and workers, one by one."""

import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from allyouneed.config import parse
from allyouneed.dropout import Dropout
from allyouneed.errors import ConfigError
from allyouneed.training.average import EmaConfig, LastConfig
from allyouneed.training.budget import BudgetConfig, Spent
from allyouneed.training.muon import Muon, orthogonalise
from allyouneed.training.optimizer import OPTIMIZERS, AdamConfig, MuonConfig
from allyouneed.training.schedule import SCHEDULES, InverseSqrtConfig
from allyouneed.training.workers import Workers


class Small(nn.Module):
    """Parameters with the names of a model: a table, matrices inside blocks, vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 6))
        self.blocks = nn.ModuleList([nn.Linear(6, 18), nn.Linear(18, 6)])
        self.dropout = Dropout(0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.dropout(block(x).tanh())
        return (x @ self.table.T).square().sum()


@pytest.mark.parametrize("tree", [{}, {"steps": 1, "tokens": 2}])
def test_a_budget_is_exactly_one_number(tree: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="exactly one"):
        parse(BudgetConfig, tree)


def test_fractions_of_each_budget() -> None:
    spent = Spent(steps=5, tokens=70, seconds=30.0, flops=4e9)
    budgets = {"steps": 10, "tokens": 700, "minutes": 5.0, "flops": 1.6e10}
    fractions = [spent.fraction(parse(BudgetConfig, {name: value})) for name, value in budgets.items()]
    assert fractions == [0.5, 0.1, 0.1, 0.25]


def test_inverse_sqrt_is_the_papers_rule() -> None:
    """lrate = d^-0.5 min(step^-0.5, step warmup^-1.5)   (equation 3)."""
    schedule, total, warmup, width = InverseSqrtConfig(warmup=0.04), 100_000, 4_000, 512
    peak = width**-0.5 * warmup**-0.5
    for step in (1, 1000, 4000, 4001, 50_000, 100_000):
        paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert peak * schedule.factor(step / total) == pytest.approx(paper)


@given(
    kind=st.sampled_from(["inverse-sqrt", "cosine", "linear", "stable-decay", "constant"]),
    warmup=st.floats(0.01, 0.5),
    fraction=st.floats(0, 1.2),
)
def test_schedules_stay_between_zero_and_the_peak(kind: str, warmup: float, fraction: float) -> None:
    factor = parse(SCHEDULES[kind], {"warmup": warmup}).factor(fraction)
    assert 0 <= factor <= 1 + 1e-12


@pytest.mark.parametrize(("kind", "end"), [("cosine", 0.0), ("linear", 0.0), ("stable-decay", 0.0), ("constant", 1.0)])
def test_schedules_end_where_they_should(kind: str, end: float) -> None:
    decay = {"decay": 0.2} if kind == "stable-decay" else {}
    schedule = parse(SCHEDULES[kind], {"warmup": 0.1, **decay})
    assert schedule.factor(0.05) == pytest.approx(0.5)
    assert schedule.factor(0.1) == pytest.approx(1.0)
    assert schedule.factor(1.0) == pytest.approx(end, abs=1e-9)


@pytest.mark.parametrize("shape", [(3, 5, 5), (2, 4, 9), (2, 9, 4)])
def test_orthogonalise_evens_out_singular_values(shape: tuple[int, int, int]) -> None:
    matrix = torch.randn(shape, dtype=torch.float64)
    found = orthogonalise(matrix, steps=8)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.6
    assert values.max() < 1.3
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)  # the exact answer keeps the singular vectors
    cosine = torch.nn.functional.cosine_similarity(found.flatten(1), (u @ vh).flatten(1))
    assert cosine.min() > 0.95


def test_muon_moves_stacked_squares_apart() -> None:
    """A 3D x D matrix (queries, keys, values) moves like three D x D ones."""
    weight = torch.randn(12, 4, dtype=torch.float64)
    grad = torch.randn(12, 4, dtype=torch.float64)
    whole = nn.Parameter(weight.clone())
    parts = [nn.Parameter(part.clone()) for part in weight.split(4)]
    whole.grad = grad.clone()
    for parameter, part in zip(parts, grad.split(4), strict=True):
        parameter.grad = part.clone()
    Muon([whole], lr=0.1, weight_decay=0.1).step()
    Muon(parts, lr=0.1, weight_decay=0.1).step()
    torch.testing.assert_close(whole.detach(), torch.cat([part.detach() for part in parts]))
    assert not torch.equal(whole.detach(), weight)


def test_muon_shared_by_workers_equals_one_worker() -> None:
    models = [Small(), Small()]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        model.eval()(torch.randn(3, 6, generator=torch.Generator().manual_seed(0))).backward()
    optimizers = [MuonConfig().build(model) for model in models]
    optimizers[0].step(0.5)
    workers = Workers(models[1], 2, 1)
    optimizers[1].step(0.5, workers)
    workers.close()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["adam", "adamw", "muon", "rmsprop", "sgd"])
def test_optimiser_state_survives_as_tensors(kind: str) -> None:
    """Three steps = two steps, state out and in, one step; to the bit."""
    results = []
    for interrupted in (False, True):
        torch.manual_seed(3)
        model = Small().eval()
        decay = {} if kind == "adam" else {"weight_decay": 0.1}
        optimizers = parse(OPTIMIZERS[kind], decay).build(model)
        for step in range(3):
            if interrupted and step == 2:
                kept = {name: tensor.clone() for name, tensor in optimizers.tensors().items()}
                optimizers = parse(OPTIMIZERS[kind], decay).build(model)
                optimizers.load_tensors(kept)
            model.zero_grad()
            model(torch.full((2, 6), float(step + 1))).backward()
            optimizers.step(1.0)
        results.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_adam_equals_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = Small().eval(), Small().eval()
    theirs.load_state_dict(ours.state_dict())
    optimizers = AdamConfig(lr=0.01).build(ours)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    for step in range(4):
        for model in (ours, theirs):
            model.zero_grad()
            model(torch.full((2, 6), 0.3 * step + 0.1)).backward()
        optimizers.step(1.0)
        adam.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["rmsprop", "sgd"])
def test_older_rules_equal_loops_of_their_equations(kind: str) -> None:
    """RMSProp: s = a s + (1 - a) g^2, m = 0.9 m + g / (sqrt s + eps), w -= lr m.
    Nesterov: m = 0.9 m + g, w -= lr (g + 0.9 m)."""
    weight = nn.Linear(3, 2, bias=False).double()
    expected, square, momentum = weight.weight.detach().clone(), torch.zeros(2, 3).double(), torch.zeros(2, 3).double()
    settings = {"lr": 0.1, "momentum": 0.9} | ({"beta2": 0.95, "epsilon": 1e-8} if kind == "rmsprop" else {})
    optimizers = parse(OPTIMIZERS[kind], settings).build(weight)
    for step in range(1, 5):
        grad = torch.randn(2, 3, dtype=torch.float64)
        weight.weight.grad = grad.clone()
        optimizers.step(1 / step)
        if kind == "rmsprop":
            square = 0.95 * square + 0.05 * grad**2
            momentum = 0.9 * momentum + grad / (square.sqrt() + 1e-8)
            expected -= 0.1 / step * momentum
        else:
            momentum = 0.9 * momentum + grad
            expected -= 0.1 / step * (grad + 0.9 * momentum)
    torch.testing.assert_close(weight.weight.detach(), expected)


def test_ema_and_last_averages() -> None:
    model = nn.Linear(1, 1, bias=False)
    ema = EmaConfig(decay=0.5).build(model)
    last = LastConfig(count=2, every=2).build(model)
    expected = model.weight.item()
    for step in range(1, 7):
        with torch.no_grad():
            model.weight.fill_(float(step))
        ema.update(step)
        last.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    last_config = LastConfig(count=2, every=2)
    for average, copy, value in (  # the last two snapshots: steps 4 and 6
        (ema, EmaConfig(decay=0.5).build(model), expected),
        (last, last_config.build(model), 5.0),
    ):
        copy.load_tensors(average.tensors())
        with copy.swapped_in():
            assert model.weight.item() == pytest.approx(value, rel=1e-6)
        assert model.weight.item() == 6.0


def test_workers_add_up_gradients_and_repeat_to_the_bit() -> None:
    torch.manual_seed(1)
    model = Small()
    batches = [torch.randn(4, 6) for _ in range(5)]

    def job(number: int) -> Any:
        def run(replica: nn.Module) -> float:
            loss = replica(batches[number])
            loss.backward()
            return float(loss.detach())

        return run

    found = []
    for count in (1, 2, 2, 3):
        workers = Workers(model, count, 1)
        workers.train(True)
        values = workers.run([(100 + number, job(number)) for number in range(5)])
        found.append((values, [parameter.grad for parameter in model.parameters()]))
        model.zero_grad(set_to_none=True)
        workers.close()
    assert found[0][0] == found[1][0] == found[3][0]  # masks follow from the seeds, not from the worker
    assert len(set(found[0][0])) == 5
    torch.testing.assert_close(found[0][1], found[3][1])
    assert all(torch.equal(one, other) for one, other in zip(found[1][1], found[2][1], strict=True))


def test_an_error_in_a_worker_is_raised_in_the_caller() -> None:
    workers = Workers(Small(), 2, 1)

    def fail(replica: nn.Module) -> float:
        if threading.current_thread() is not threading.main_thread():
            raise FloatingPointError("in a thread")
        return 0.0

    with pytest.raises(FloatingPointError, match="in a thread"):
        workers.run([(0, fail), (1, fail)])
    assert workers.run([(0, lambda _: 1.0), (1, lambda _: 2.0)]) == [1.0, 2.0]
    workers.close()
