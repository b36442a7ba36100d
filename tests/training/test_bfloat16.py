"""Training with products in bfloat16 on a CPU: what is rounded, what is not, and that the bits repeat."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed.config import merge, parse
from allyouneed.dropout import Dropout, seed_dropout
from allyouneed.mixers.lookup import lookup, soft_alpha, soft_lookup
from allyouneed.mixers.parts.block_sparse import Pattern, attend_sparsely, bands_of
from allyouneed.models import Model
from allyouneed.tasks.loss import linear_cross_entropy
from allyouneed.training import Interrupted, Recipe, train
from allyouneed.training.log import read_log
from allyouneed.training.loop import Run
from allyouneed.training.muon import Muon, orthogonalise
from allyouneed.training.progress import SilentListener
from helpers import file_hash

EPSILON = torch.finfo(torch.bfloat16).eps  # 2^-7: numbers are rounded by at most half of it
TINY: dict[str, Any] = {
    "task": {"type": "copy", "batch": 16, "valid": 20, "test": 20},
    "model": {
        "type": "encoder-decoder",
        "width": 16,
        "hidden": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "norm": "pre",
        "mixer": {"type": "softmax", "heads": 2},
    },
    "train": {
        "budget": {"steps": 8},
        "accumulate": 2,
        "workers": 2,
        "evaluate_every": 0.25,
        "log_every": 1,
        "precision": "bfloat16",
        "optimizer": {"type": "muon"},
    },
    "decode": {"beam": 2},
}


def half() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, cache_enabled=False)


def relative(found: Tensor, wanted: Tensor) -> float:
    """The distance of two tensors in units of bfloat16's epsilon."""
    return float((found - wanted).norm() / wanted.norm()) / EPSILON


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [5, 1000])
def test_the_loss_has_products_in_bfloat16_and_sums_in_float32(
    smoothing: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allyouneed.tasks.loss.CHUNK_BYTES", 50 * 4 * rows)
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((300, 32), (50, 32), (50,)))
    target = torch.randint(0, 50, (300,))
    exact = F.cross_entropy(F.linear(x, weight, bias), target, reduction="sum", label_smoothing=smoothing)
    with half():
        found = linear_cross_entropy(x, weight, bias, target, smoothing)
    assert found.dtype == torch.float32
    # Each of the 300 losses is rounded by itself, so errors cancel in their sum; a sum in bfloat16 would stop at 2^8.
    assert 0 < abs(float(found.detach() - exact.detach())) / float(exact.detach()) < EPSILON / 8
    for ours, theirs in zip(*(torch.autograd.grad(y, (x, weight, bias)) for y in (found, exact)), strict=True):
        assert ours.dtype == torch.float32
        assert 0 < relative(ours, theirs) < 1.0


def test_a_layer_has_the_gradient_of_float32_up_to_rounding() -> None:
    torch.manual_seed(0)
    layer, x, noise = nn.Linear(64, 96), torch.randn(200, 64, requires_grad=True), torch.randn(200, 96)
    sources = (x, layer.weight, layer.bias)
    exact = torch.autograd.grad((layer(x) * noise).sum(), sources)
    with half():
        y = layer(x)
    assert y.dtype == torch.bfloat16
    for ours, theirs in zip(torch.autograd.grad((y * noise).sum(), sources), exact, strict=True):
        assert ours.dtype == torch.float32
        assert 0 < relative(ours, theirs) < 1.0


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
ATTENTION: dict[str, Attend] = {
    "fused": lambda q, k, v: soft_lookup(q, k, v, causal=True),
    "capped": lambda q, k, v: soft_lookup(q, k, v, cap=5.0),
    "in steps": lambda q, k, v: lookup(soft_alpha(q, k), v),
    "sparse": lambda q, k, v: attend_sparsely(q, k, v, bands_of(Pattern(7, 0), 40, 40)),
}


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_attention_is_computed_in_float32(name: str, given: torch.dtype) -> None:
    """Autocast must not round what is given in float32, and what is given in bfloat16 is widened: equal to the bit."""
    q, k, v = (torch.randn(2, 3, 40, 8).to(given) for _ in range(3))
    exact = ATTENTION[name](q.float(), k.float(), v.float())
    with half():
        found = ATTENTION[name](q, k, v)
    assert torch.equal(found, exact)


def test_dropout_keeps_its_scale() -> None:
    """1 / (1 - p) would be rounded in bfloat16, and training would differ from evaluation by that factor."""
    x, y = torch.zeros(64, 64), torch.ones(64, 64, dtype=torch.bfloat16)
    seed_dropout(1)
    found = Dropout(0.1).add(x, y).unique()
    assert torch.equal(found, torch.tensor([0.0, 256 / 230]))


@pytest.mark.parametrize("shape", [(3, 24, 24), (2, 16, 64), (2, 64, 16)])
def test_muon_finds_the_nearest_orthogonal_matrix_in_bfloat16(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    u, values, vh = torch.linalg.svd(matrix, full_matrices=False)
    matrix = u @ (values.clamp(min=0.2).unsqueeze(-1) * vh)  # five steps do not lift singular values near zero
    found = orthogonalise(matrix, products=torch.bfloat16)
    assert found.dtype == torch.float32
    cosine = F.cosine_similarity(found.flatten(1), (u @ vh).flatten(1))
    assert cosine.min() > 0.95
    exact = orthogonalise(matrix)
    assert 0 < relative(found, exact) < 4.0  # five polynomials of degree five
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_muon_keeps_its_moments_in_float32() -> None:
    moved = []
    for products in (None, torch.bfloat16):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(16, 48))
        muon = Muon([weight], lr=0.1, products=products)
        for _ in range(3):
            weight.grad = torch.randn(16, 48)
            muon.step()
        moved.append((weight.detach(), muon.state[weight]["momentum"]))
    (wide, momentum), (half_weight, half_momentum) = moved
    assert torch.equal(momentum, half_momentum)
    assert 0 < relative(half_weight, wide) < 1.0


class Stopper(SilentListener):
    """Stops a run at its second evaluation, as a signal would."""

    def __init__(self) -> None:
        self.left = 2

    def progress(self, fraction: float, record: dict[str, Any]) -> None:
        import os
        import signal

        if record["kind"] == "evaluation":
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGTERM)


def recipe(**changes: Any) -> Recipe:
    return parse(Recipe, merge(TINY, changes))


def weights(folder: Path) -> str:
    return file_hash(folder / "model" / "model.safetensors")


@pytest.mark.parametrize("deterministic", [False, True])
def test_stopped_and_resumed_ends_in_the_same_bits(deterministic: bool, tmp_path: Path) -> None:
    wanted = recipe(train={"deterministic": deterministic})
    train(wanted, tmp_path / "whole", cores=2)
    with pytest.raises(Interrupted):
        train(wanted, tmp_path / "parts", Stopper(), cores=2)
    train(wanted, tmp_path / "parts", cores=2)
    assert weights(tmp_path / "whole") == weights(tmp_path / "parts")
    train(recipe(train={"precision": "float32"}), tmp_path / "wide", cores=2)
    assert weights(tmp_path / "whole") != weights(tmp_path / "wide")


def test_threads_share_no_cache_of_rounded_weights(tmp_path: Path) -> None:
    """Autocast's cache belongs to the process: when one thread leaves, it is emptied for all, at any time."""
    run = Run(recipe(), tmp_path, SilentListener(), torch.device("cpu"), cores=2)
    seen = []

    def look(module: nn.Module, given: object) -> None:
        seen.append((torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()))

    for replica in run.workers.replicas:
        assert isinstance(replica, Model)
        next(module for module in replica.modules() if isinstance(module, nn.Linear)).register_forward_pre_hook(look)
    run.step()
    run.close()
    assert seen == [(True, False)] * 2


def test_a_model_learns_as_in_float32(tmp_path: Path) -> None:
    """The same data, masks and initial weights: the loss of the last steps differs by less than 2 %."""
    ends = []
    for precision in ("float32", "bfloat16"):
        changes = {"budget": {"steps": 150}, "precision": precision, "evaluate_every": 1.0}
        train(recipe(train=changes), tmp_path / precision, cores=1)
        losses = [one["loss"] for one in read_log(tmp_path / precision / "log.jsonl") if one["kind"] == "step"]
        ends.append(sum(losses[-30:]) / 30)
        assert ends[-1] < 0.8 * losses[0]
    assert ends[1] == pytest.approx(ends[0], rel=0.02)
    assert ends[1] != ends[0]
