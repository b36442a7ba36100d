"""The Neural GPU against loops written from its papers' equations, and what is its alone.

The laws that all models share are in tests/contracts/test_models.py.
"""

import pytest
import torch
from torch import Tensor, nn

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.mixers.base import send_losses_to
from allyouneed.models.neural_gpu import CGRU, NeuralGPU, NeuralGPUConfig
from allyouneed.sizes import Sizes

SMALL = {"rows": 3, "channels": 7, "layers": 2, "dropout": 0.0}
KINDS: list[dict[str, object]] = [
    {},
    {"diagonal": True, "limits": "hard"},
    {"rows": 1, "layers": 1, "diagonal": True},
    {"rows": 2, "limits": "hard"},
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def build(**settings: object) -> NeuralGPU:
    """In float64, with numbers large enough that every limit is reached somewhere."""
    model = parse(NeuralGPUConfig, {**SMALL, **settings}).build(Sizes(11, 13)).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def limit(x: Tensor, kind: str, name: str) -> Tensor:
    """One number at a time: f and g of both papers."""
    if name == "gate":
        y = (1 + x) / 2 if kind == "hard" else 1.2 / (1 + torch.exp(-x)) - 0.1
        low = torch.zeros_like(y)
    else:
        y = x if kind == "hard" else 1.2 * (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x))
        low = -torch.ones_like(y)
    return torch.minimum(torch.maximum(y, low), torch.ones_like(y))


def at(image: Tensor, row: int, column: int) -> Tensor:
    """The channels of one cell; zeros beyond the image."""
    inside = 0 <= row < image.shape[0] and 0 <= column < image.shape[1]
    return image[row, column] if inside else torch.zeros_like(image[0, 0])


def convolved(image: Tensor, convolution: nn.Conv2d, row: int, column: int) -> Tensor:
    """(U * s)[x, y] = sum over the kernel of U[u, v] s[x + u, y + v], plus the bias."""
    height, width = convolution.kernel_size
    assert convolution.bias is not None
    total = convolution.bias
    for u in range(height):
        for v in range(width):
            total = total + convolution.weight[:, :, u, v] @ at(image, row + u - height // 2, column + v - width // 2)
    return total


def cgru(image: Tensor, layer: CGRU) -> tuple[Tensor, Tensor]:
    """u . s + (1 - u) . c cell by cell, and the loss of the limits: u, r and c, a mean for every column."""
    kind, D, third = layer.config.limits, image.shape[2], image.shape[2] // 3
    places = [(row, column) for row in range(image.shape[0]) for column in range(image.shape[1])]
    gates = {place: convolved(image, layer.gates, *place) for place in places}
    u = {place: limit(gates[place][:D], kind, "gate") for place in places}
    r = {place: limit(gates[place][D:], kind, "gate") for place in places}
    reset = torch.stack([r[place] * image[place] for place in places]).view_as(image)
    inner = {place: convolved(reset, layer.candidate, *place) for place in places}
    cells = []
    for row, column in places:
        kept = image[row, column]
        if layer.config.diagonal:
            before, after = at(image, row, column - 1), at(image, row, column + 1)
            kept = torch.cat([kept[: D - 2 * third], before[D - 2 * third : D - third], after[D - third :]])
        gate, new = u[row, column], limit(inner[row, column], kind, "candidate")
        cells.append(gate * kept + (1 - gate) * new)
    over = sum((x.abs() - 0.9).clamp(min=0).sum() for x in [*gates.values(), *inner.values()])
    return torch.stack(cells).view_as(image), torch.as_tensor(over) / image[:, 0].numel()


def looped(model: NeuralGPU, source: list[int]) -> tuple[Tensor, Tensor]:
    """The first row of the last image, and the loss of all steps."""
    blank = torch.zeros(model.config.rows - 1, len(source), model.config.channels, dtype=torch.float64)
    image = torch.cat([torch.stack([model.source_VD[one] for one in source]).unsqueeze(0), blank])
    cost = torch.zeros((), dtype=torch.float64)
    for _ in source:
        for layer in model._layers():
            image, more = cgru(image, layer)
            cost = cost + more
    return image[0], cost


@pytest.mark.no_shapes
@every_kind
def test_it_is_the_loop_of_the_papers(kind: dict[str, object]) -> None:
    """Forward and the gradient of every weight, two rows of different lengths with padding between their tokens."""
    model = build(**kind)
    source = torch.tensor([[5, 0, 6, 9], [7, 4, 8, 5]])
    valid = torch.tensor([[True, False, True, False], [True, True, True, True]])
    fast, _ = model.hidden(torch.zeros(2, 5, dtype=torch.long), model.condition(source, valid))
    short, long = looped(model, [5, 6])[0], looped(model, [7, 4, 8, 5])[0]
    slow = torch.zeros_like(fast)
    slow[0, :2], slow[1, :4] = short, long
    torch.testing.assert_close(fast, slow)
    weights = [model.source_VD, *model.layers.parameters()]
    noise = torch.randn_like(slow)
    torch.testing.assert_close(torch.autograd.grad(fast, weights, noise), torch.autograd.grad(slow, weights, noise))


@pytest.mark.no_shapes
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.get("limits") == "hard"], ids=str)
def test_the_loss_of_limits_is_that_of_the_loop(kind: dict[str, object]) -> None:
    """It is handed over once, with the first tokens, however many there are."""
    model = build(**kind, saturation=0.25)
    found: list[Tensor] = []
    state = model.condition(torch.tensor([[5, 6, 7], [7, 4, 8]]))
    with send_losses_to(found.append):
        _, state = model.hidden(torch.zeros(2, 3, dtype=torch.long), state)
        model.hidden(torch.zeros(2, 1, dtype=torch.long), state)
    wanted = 0.25 * (looped(model, [5, 6, 7])[1] + looped(model, [7, 4, 8])[1])
    assert len(found) == 1
    torch.testing.assert_close(found[0], wanted)
    weights = list(model.layers.parameters())
    torch.testing.assert_close(torch.autograd.grad(found[0], weights), torch.autograd.grad(wanted, weights))


def test_the_loss_of_limits_knows_no_padding() -> None:
    """Rows of every length have, beside others and padding between their tokens, the loss and gradient that they have
    alone."""
    model = build(limits="hard")
    valid_BS = torch.tensor([[1, 0, 0, 1, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 0]]).bool()
    source_BS = torch.randint(4, 11, (4, 6))
    weights = [model.source_VD, *model.layers.parameters()]
    together_B = model.encode(source_BS, valid_BS).saturation_B
    assert together_B is not None
    assert float(together_B[2].detach()) == 0.0
    for row in (0, 1, 3):
        alone_B = model.encode(source_BS[row : row + 1, valid_BS[row]]).saturation_B
        assert alone_B is not None
        torch.testing.assert_close(together_B[row], alone_B[0])
        found = torch.autograd.grad(together_B[row], weights, retain_graph=True)
        torch.testing.assert_close(found, torch.autograd.grad(alone_B[0], weights))


@torch.no_grad()
def test_a_source_without_tokens_gives_numbers() -> None:
    model = build().eval()
    state = model.condition(torch.zeros(2, 3, dtype=torch.long), torch.tensor([[True] * 3, [False] * 3]))
    assert bool(model.step(torch.randint(4, 13, (2, 4)), state)[0].isfinite().all())


@torch.no_grad()
def test_padding_between_the_tokens_of_a_target_changes_nothing() -> None:
    model = build().eval()
    source_BS, valid_BN = torch.randint(4, 11, (2, 5)), torch.tensor([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0]]).bool()
    alone_BTV, _ = model.step(torch.zeros(2, 4, dtype=torch.long), model.condition(source_BS))
    said, state = model.step(torch.zeros(2, 5, dtype=torch.long), model.condition(source_BS), valid_BN)
    next_BV, _ = model.advance(torch.zeros(2, dtype=torch.long), state)
    for row, count in enumerate([3, 1]):
        torch.testing.assert_close(said[row, valid_BN[row]], alone_BTV[row, :count])
        torch.testing.assert_close(next_BV[row], alone_BTV[row, count])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"saturation": 0.1}, "saturation 0.1 weighs the loss of hard limits"),
        ({"saturation": 0.0, "limits": "cutoff"}, "leave it out"),
        ({"diagonal": True, "channels": 2}, "2 have no third"),
    ],
)
def test_what_would_be_ignored_is_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(**settings)


def test_it_needs_a_source() -> None:
    with pytest.raises(ConfigError, match="no source was given"):
        build().start()


def test_a_second_derivative_is_refused_not_wrong() -> None:
    """The gradient is written by hand; what it is made of knows no gradient."""
    model = build()
    x_BTD, _ = model.hidden(torch.zeros(1, 2, dtype=torch.long), model.condition(torch.tensor([[5, 6]])))
    (first,) = torch.autograd.grad(x_BTD.square().sum(), model.source_VD, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
