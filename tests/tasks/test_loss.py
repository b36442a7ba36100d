"""The chunked loss against torch's cross-entropy, value and gradient; and which predictions count."""

import pytest
import torch
from torch.nn import functional as F

from allyouneed.config import parse
from allyouneed.models.decoder import Decoder, DecoderConfig
from allyouneed.sizes import Sizes
from allyouneed.tasks import loss as module
from allyouneed.tasks.base import Batch
from allyouneed.tasks.loss import batch_loss, linear_cross_entropy, losses
from allyouneed.text.specials import PAD

XL: dict[str, object] = {"type": "xl", "heads": 2, "memory": 5}


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 1000])
def test_equals_torch(smoothing: float, with_bias: bool, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 11 * 8 * rows)
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


def small(mixer: dict[str, object], positions: str = "rotary") -> Decoder:
    tree = {"width": 8, "hidden": 16, "layers": 2, "dropout": 0.0, "mixer": mixer, "positions": positions}
    return parse(DecoderConfig, tree).build(Sizes(0, 9)).double()


def windows(segment: int | None) -> Batch:
    tokens = torch.randint(3, 9, (2, 12), generator=torch.Generator().manual_seed(0))
    tokens[1, 7] = PAD  # not predicted
    return Batch(input_BT=tokens[:, :-1].clamp(min=1), output_BT=tokens[:, 1:], segment=segment)


@pytest.mark.parametrize("segment", [1, 4, 11, 50])
@pytest.mark.parametrize(
    ("mixer", "positions"),
    [({"type": "softmax", "heads": 2}, "rotary"), ({"type": "linear", "heads": 2}, "sinusoidal"), (XL, "none")],
)
def test_segments_do_not_change_the_loss(mixer: dict[str, object], positions: str, segment: int) -> None:
    model = small(mixer, positions)
    whole, parts = (batch_loss(model, windows(size)) for size in (None, segment))
    assert whole.count == parts.count == 21
    torch.testing.assert_close(parts.total, whole.total)


def test_the_gradient_stops_at_the_start_of_a_segment() -> None:
    model = small({"type": "softmax", "heads": 2})
    batch = windows(4)
    assert batch.input_BT is not None
    assert batch.output_BT is not None
    gradients = torch.autograd.grad(batch_loss(model, batch).total, list(model.parameters()))
    expected = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for begin in (0, 4, 8):
        with torch.no_grad():
            state = model.hidden(batch.input_BT[:, :begin], model.start())[1] if begin else model.start()
        x_BTD, _ = model.hidden(batch.input_BT[:, begin : begin + 4], state)
        target = batch.output_BT[:, begin : begin + 4].flatten()
        loss = F.cross_entropy(model.head(x_BTD).flatten(0, 1), target, ignore_index=PAD, reduction="sum")
        for total, part in zip(expected, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            total += part
    torch.testing.assert_close(list(gradients), expected)
    whole = torch.autograd.grad(batch_loss(model, windows(None)).total, list(model.parameters()))
    assert not torch.allclose(gradients[0], whole[0])


def test_each_segment_can_be_differentiated_at_once() -> None:
    """As in training, so that only the activations of one segment are in memory."""
    model = small(XL, "none")
    together = torch.autograd.grad(batch_loss(model, windows(3)).total, list(model.parameters()))
    for loss in losses(model, windows(3)):
        loss.total.backward()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], list(together))
