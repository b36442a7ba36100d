"""Show, Attend and Tell against loops written from its equations; the blind decoder; image sizes."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from allyouneed.config import parse
from allyouneed.errors import DataError
from allyouneed.inspection.maps import record_maps
from allyouneed.mixers import send_losses_to
from allyouneed.models.show_attend_tell import LSTMWriter, ShowAttendTell, ShowAttendTellConfig
from allyouneed.sizes import Sizes

IDS, WORDS = 20, 13
LSTM = {"type": "lstm", "width": 6, "embedding": 4, "penalty": 0.7, "dropout": 0.0}
TRANSFORMER = {"type": "transformer", "width": 8, "hidden": 10, "mixer": {"type": "softmax", "heads": 2}}


def built(**settings: Any) -> ShowAttendTell:
    tree = {"size": 5, "channels": 2, "filters": [3, 7], "decoder": LSTM, **settings}
    model = parse(ShowAttendTellConfig, tree).build(Sizes(IDS, WORDS)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


def images(rows: int = 2) -> Tensor:
    return torch.randint(4, IDS, (rows, 5 * 5 * 2 + 1))


def by_loops(model: ShowAttendTell, a: Tensor, words: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Compute one caption cell by cell: the logits after each word, the attention weights, and the penalty."""
    writer = model.decoder
    assert isinstance(writer, LSTMWriter)
    L, (h, c) = len(a), writer.begin(sum(a) / len(a)).tanh().chunk(2)
    logits, alphas = [], []
    for word in words:
        y = writer.target.weight_VD[word] * 4**0.5
        e = [
            writer.cross.sum.weight[0] @ (writer.cross.query.weight @ h + writer.cross.key.weight @ a[i]).tanh()
            for i in range(L)
        ]
        total = sum(score.exp() for score in e)
        alpha = [score.exp() / total for score in e]
        beta = 1 / (1 + (-(writer.gate.weight[0] @ h + writer.gate.bias[0])).exp())
        z = beta * sum(alpha[i] * a[i] for i in range(L))
        # torch's own cell reads [E y; z].
        weight = torch.cat([writer.cell.input.weight, writer.context.weight], dim=1)
        cell = torch.nn.LSTMCell(weight.shape[1], 6).double()
        given = {"weight_ih": weight, "weight_hh": writer.cell.past.weight, "bias_ih": writer.cell.input.bias}
        given["bias_hh"] = torch.zeros_like(given["bias_ih"])
        x = torch.cat([y, z]).unsqueeze(0)
        h, c = (one[0] for one in torch.func.functional_call(cell, given, (x, (h.unsqueeze(0), c.unsqueeze(0)))))
        L_h, L_z = writer.deep.weight[:, :6], writer.deep.weight[:, 6:]
        assert model.head.bias_V is not None
        logits.append(model.head.weight_VD @ (y + L_h @ h + L_z @ z) + model.head.bias_V)
        alphas.append(torch.stack(alpha))
    penalty = sum((1 - sum(alpha[i] for alpha in alphas)) ** 2 for i in range(L))
    return torch.stack(logits), torch.stack(alphas), torch.as_tensor(penalty)


def test_attention_equals_loops_of_the_paper() -> None:
    model, source, words = built(), images(), torch.randint(4, WORDS, (2, 5))
    beside: list[Tensor] = []
    with send_losses_to(beside.append), record_maps(model) as maps:
        logits, _ = model.step(words, model.condition(source))
    annotations = model.encode(source).x_BSD
    wanted = [by_loops(model, list(annotations[row]), words[row].tolist()) for row in range(2)]
    torch.testing.assert_close(logits, torch.stack([one[0] for one in wanted]))
    torch.testing.assert_close(maps[-1].weights_BHTS[:, 0], torch.stack([one[1] for one in wanted]).detach())
    (penalty,) = beside
    torch.testing.assert_close(penalty, 0.7 * (wanted[0][2] + wanted[1][2]))
    noise, weights = torch.randn_like(logits), list(model.parameters())
    ours = torch.autograd.grad((logits * noise).sum() + penalty, weights)
    slow = sum((one[0] * noise[row]).sum() + 0.7 * one[2] for row, one in enumerate(wanted))
    torch.testing.assert_close(ours, torch.autograd.grad(slow, weights))


def test_the_image_is_read_row_by_row_and_its_convolutions_are_sums() -> None:
    model, source = built(filters=[3]), images(1)
    assert model.encoder is not None
    x = model.encoder.pixels(source)
    assert x[0, 1, 2, 4] == source[0, (2 * 5 + 4) * 2 + 1].double() * (2 / 19) - 1
    stage = model.encoder.stages[0]
    halved = torch.zeros(3, 3, 3, dtype=torch.float64)
    for row in range(3):
        for column in range(3):
            for i in range(3):
                for j in range(3):
                    y, z = 2 * row + i - 1, 2 * column + j - 1
                    if 0 <= y < 5 and 0 <= z < 5:
                        halved[:, row, column] += stage.halve.weight[:, :, i, j] @ x[0, :, y, z]
    torch.testing.assert_close(stage.halve(x)[0], halved)
    normed = (halved - halved.mean()) / (halved.var(correction=0) + 1e-5).sqrt()
    norm = stage.norms[0]
    first = (normed * norm.weight[:, None, None] + norm.bias[:, None, None]).relu().unsqueeze(0)
    out = first + F.group_norm(stage.mix(first), 1, stage.norms[1].weight, stage.norms[1].bias).relu()
    torch.testing.assert_close(model.encode(source).x_BSD[0], out[0].flatten(1).T)


@pytest.mark.parametrize("decoder", [LSTM, TRANSFORMER])
def test_only_a_blind_decoder_ignores_the_image(decoder: dict[str, Any]) -> None:
    words = torch.randint(4, WORDS, (1, 5))
    for blind in (False, True):
        model = built(decoder=decoder, blind=blind).eval()
        one, two = (model.step(words, model.condition(images(1)))[0] for _ in range(2))
        assert torch.equal(one, two) == blind


def test_eos_is_not_read_but_a_larger_image_is_refused() -> None:
    model, source = built(), images()
    assert torch.equal(model.encode(source).x_BSD, model.encode(source[:, :-1]).x_BSD)
    with pytest.raises(DataError, match=r"52 ids; an image of 5 x 5 pixels in 2 channels has 50"):
        model.encode(torch.cat([source, source[:, :1]], dim=1))


def test_no_penalty_is_sent_outside_training_or_at_weight_zero() -> None:
    beside: list[Tensor] = []
    for settings in ({"decoder": {**LSTM, "penalty": 0.0}}, {"decoder": TRANSFORMER}):
        model = built(**settings)
        with send_losses_to(beside.append):
            model.step(torch.tensor([[5, 6]]), model.condition(images(1)))
    assert not beside
