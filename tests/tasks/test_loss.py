"""The chunked loss against torch's own cross-entropy, value and gradient; and what of a batch counts."""

import pytest
import torch
from torch.nn import functional as F

from allyouneed.config import parse
from allyouneed.models.decoder import DecoderConfig
from allyouneed.sizes import Sizes
from allyouneed.tasks import loss as module
from allyouneed.tasks.base import PAD, Batch
from allyouneed.tasks.loss import batch_loss, linear_cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 1000])
def test_equals_torch(smoothing: float, with_bias: bool, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 11 * 8 * rows)
    x = torch.randn(37, 7, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 7, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(11, dtype=torch.float64, requires_grad=True) if with_bias else None
    target = torch.randint(0, 11, (37,))
    inputs = [tensor for tensor in (x, weight, bias) if tensor is not None]
    ours = linear_cross_entropy(x, weight, bias, target, smoothing)
    theirs = F.cross_entropy(F.linear(x, weight, bias), target, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(3 * ours, inputs), torch.autograd.grad(3 * theirs, inputs))
    with torch.no_grad():
        torch.testing.assert_close(linear_cross_entropy(x, weight, bias, target, smoothing), theirs.detach())


def test_extreme_logits_stay_finite() -> None:
    x = torch.tensor([[1000.0], [-1000.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0], [0.5]], requires_grad=True)
    loss = linear_cross_entropy(x, weight, None, torch.tensor([1, 1]))
    assert loss.item() == pytest.approx(2000.0)
    assert all(torch.isfinite(grad).all() for grad in torch.autograd.grad(loss, (x, weight)))


def test_padding_of_the_target_does_not_count() -> None:
    tree = {"width": 8, "hidden": 16, "layers": 1, "dropout": 0.0, "mixer": {"type": "softmax", "heads": 2}}
    model = parse(DecoderConfig, tree).build(Sizes(0, 9)).double()
    inputs, outputs = torch.tensor([[1, 5, 6], [1, 7, PAD]]), torch.tensor([[5, 6, 2], [7, 2, PAD]])
    whole = batch_loss(model, Batch(input_BT=inputs, output_BT=outputs))
    parts = [
        batch_loss(model, Batch(input_BT=inputs[:1], output_BT=outputs[:1])),
        batch_loss(model, Batch(input_BT=inputs[1:, :2], output_BT=outputs[1:, :2])),
    ]
    assert whole.count == 5
    torch.testing.assert_close(whole.total, parts[0].total + parts[1].total)
