"""The Neural GPU against loops written from its papers' equations, and its own properties.

The laws that all models share are in tests/contracts/test_models.py.
"""

import math

import pytest
import torch
from torch import Tensor, nn

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.mixers.base import send_losses_to
from allyouneed.models.neural_gpu import NeuralGPU, NeuralGPUConfig
from allyouneed.models.parts.cgru import CGRU
from allyouneed.models.parts.tape import Tape
from allyouneed.sizes import Sizes

SMALL = {"rows": 3, "channels": 7, "layers": 2, "dropout": 0.0}
KINDS: list[dict[str, object]] = [
    {},
    {"diagonal": True, "limits": "hard"},
    {"rows": 1, "layers": 1, "diagonal": True},
    {"rows": 2, "limits": "hard"},
    {"rows": 2, "layers": 1, "unfold": 1.4},
]
TAPES: list[dict[str, object]] = [
    {},
    {"rows": 1, "diagonal": True},
    {"rows": 2, "layers": 1, "unfold": 1.4},
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def build(**settings: object) -> NeuralGPU:
    """Return a model in float64 with weights large enough to reach every limit somewhere."""
    model = parse(NeuralGPUConfig, {**SMALL, **settings}).build(Sizes(11, 13)).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def limit(x: Tensor, kind: str, name: str) -> Tensor:
    """Return f or g of both papers, computed for each number."""
    if name == "gate":
        y = (1 + x) / 2 if kind == "hard" else 1.2 / (1 + torch.exp(-x)) - 0.1
        low = torch.zeros_like(y)
    else:
        y = x if kind == "hard" else 1.2 * (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x))
        low = -torch.ones_like(y)
    return torch.minimum(torch.maximum(y, low), torch.ones_like(y))


def at(image: Tensor, row: int, column: int) -> Tensor:
    """Return the channels of one cell; zeros beyond the image."""
    inside = 0 <= row < image.shape[0] and 0 <= column < image.shape[1]
    return image[row, column] if inside else torch.zeros_like(image[0, 0])


def swept(image: Tensor, kernel: Tensor, row: int, column: int) -> Tensor:
    """(U * s)[x, y] = sum over the kernel of U[u, v] s[x + u, y + v]."""
    height, width = kernel.shape[2:]
    total = torch.zeros(kernel.shape[0], dtype=image.dtype)
    for u in range(height):
        for v in range(width):
            total = total + kernel[:, :, u, v] @ at(image, row + u - height // 2, column + v - width // 2)
    return total


def convolved(image: Tensor, convolution: nn.Conv2d, row: int, column: int) -> Tensor:
    """U * s + b in one cell."""
    assert convolution.bias is not None
    return swept(image, convolution.weight, row, column) + convolution.bias


def cgru(image: Tensor, layer: CGRU, tape: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """u . s + (1 - u) . c cell by cell, and the loss of the limits: u, r and c, a mean for every column."""
    kind, D, third = "hard" if layer.shape.hard else "cutoff", image.shape[2], image.shape[2] // 3
    places = [(row, column) for row in range(image.shape[0]) for column in range(image.shape[1])]
    from_tape = {place: torch.zeros(3 * D, dtype=image.dtype) for place in places}
    if tape is not None:
        from_tape = {place: swept(*tape, *place) for place in places}
    gates = {place: convolved(image, layer.gates, *place) + from_tape[place][: 2 * D] for place in places}
    u = {place: limit(gates[place][:D], kind, "gate") for place in places}
    r = {place: limit(gates[place][D:], kind, "gate") for place in places}
    reset = torch.stack([r[place] * image[place] for place in places]).view_as(image)
    inner = {place: convolved(reset, layer.candidate, *place) + from_tape[place][2 * D :] for place in places}
    cells = []
    for row, column in places:
        kept = image[row, column]
        if layer.shape.diagonal:
            before, after = at(image, row, column - 1), at(image, row, column + 1)
            kept = torch.cat([kept[: D - 2 * third], before[D - 2 * third : D - third], after[D - third :]])
        gate, new = u[row, column], limit(inner[row, column], kind, "candidate")
        cells.append(gate * kept + (1 - gate) * new)
    over = sum((x.abs() - 0.9).clamp(min=0).sum() for x in [*gates.values(), *inner.values()])
    return torch.stack(cells).view_as(image), torch.as_tensor(over) / image[:, 0].numel()


def looped(model: NeuralGPU, source: list[int]) -> tuple[Tensor, Tensor]:
    """Return the last image and the loss of all steps."""
    columns = math.ceil(model.config.unfold * len(source))
    image = torch.zeros(model.config.rows, columns, model.config.channels, dtype=torch.float64)
    image[0, : len(source)] = torch.stack([model.source_VD[one] for one in source])
    cost = torch.zeros((), dtype=torch.float64)
    for _ in range(columns):
        for layer in model.layers:
            assert isinstance(layer, CGRU)
            image, more = cgru(image, layer)
            cost = cost + more
    return image, cost


def kernels(tape: Tape) -> list[Tensor]:
    """Return W of every layer as a kernel (3 D, D, height, 3); its last row would read a row above the image."""
    layers, D = len(tape.layers), tape.said_VD.shape[1]
    rows, columns = tape.reach
    weight = tape.write.weight.view(rows, columns, layers, 3 * D, D)
    found = []
    for layer in range(layers):
        kernel = torch.zeros(3 * D, D, 2 * rows - 1, columns, dtype=weight.dtype)
        for row in range(rows):
            for column in range(columns):
                # A symbol reaches the cell at this offset below and to the right of it.
                kernel[:, :, rows - 1 - row, columns - 1 - column] = weight[row, column, layer]
        found.append(kernel)
    return found


def taped(model: NeuralGPU, source: list[int], words: list[int]) -> Tensor:
    """d_k[0, k] for k = 0 .. len(words)."""
    assert model.tape is not None
    image, _ = looped(model, source)
    tape, blank = torch.zeros_like(image), torch.zeros_like(image[:, :1])
    outputs = [image[0, 0]]
    for k, word in enumerate(words):
        if image.shape[1] < k + 2:
            image, tape = torch.cat([image, blank], dim=1), torch.cat([tape, blank], dim=1)
        tape = tape.clone()
        tape[0, k] = model.tape.said_VD[word]
        for layer, kernel in zip(model.tape.layers, kernels(model.tape), strict=True):
            assert isinstance(layer, CGRU)
            image, _ = cgru(image, layer, (tape, kernel))
        outputs.append(image[0, k + 1])
    return torch.stack(outputs)


@pytest.mark.no_shapes
@every_kind
def test_outputs_and_gradients_equal_loops_of_the_papers(kind: dict[str, object]) -> None:
    """Compare outputs and all gradients for two rows of different lengths with padding between their tokens."""
    model = build(**kind)
    source = torch.tensor([[5, 0, 6, 9], [7, 4, 8, 5]])
    valid = torch.tensor([[True, False, True, False], [True, True, True, True]])
    fast, _ = model.hidden(torch.zeros(2, 5, dtype=torch.long), model.condition(source, valid))
    short, long = looped(model, [5, 6])[0][0], looped(model, [7, 4, 8, 5])[0][0]
    slow = torch.zeros_like(fast)
    slow[0, : len(short)], slow[1, : len(long)] = short[:5], long[:5]
    torch.testing.assert_close(fast, slow)
    weights = [model.source_VD, *model.layers.parameters()]
    noise = torch.randn_like(slow)
    torch.testing.assert_close(torch.autograd.grad(fast, weights, noise), torch.autograd.grad(slow, weights, noise))


@pytest.mark.no_shapes
@pytest.mark.parametrize("kind", TAPES, ids=str)
def test_a_tape_equals_loops_of_its_paper(kind: dict[str, object]) -> None:
    """The same, with outputs longer than the image."""
    model = build(decoder="tape", **kind)
    assert model.tape is not None
    source = torch.tensor([[5, 0, 6, 9], [7, 4, 8, 5]])
    valid = torch.tensor([[True, False, True, False], [True, True, True, True]])
    target = torch.tensor([[1, 4, 9, 5, 4, 7], [1, 12, 12, 6, 8, 7]])
    fast, _ = model.hidden(target, model.condition(source, valid))
    slow = torch.stack(
        [taped(model, [5, 6], target[0, 1:].tolist()), taped(model, [7, 4, 8, 5], target[1, 1:].tolist())]
    )
    torch.testing.assert_close(fast, slow)
    weights = [model.source_VD, *model.layers.parameters(), *model.tape.parameters()]
    noise = torch.randn_like(slow)
    torch.testing.assert_close(torch.autograd.grad(fast, weights, noise), torch.autograd.grad(slow, weights, noise))


@torch.no_grad()
@pytest.mark.parametrize("decoder", ["parallel", "tape"])
def test_tokens_depend_on_earlier_ones_only_with_a_tape(decoder: str) -> None:
    model = build(decoder=decoder).eval()
    source_BS, target_BT = torch.randint(4, 11, (1, 5)), torch.tensor([[1, 5, 6, 7, 8]])
    changed_BT = torch.tensor([[1, 9, 6, 7, 8]])
    one, two = (model.hidden(words, model.condition(source_BS))[0] for words in (target_BT, changed_BT))
    assert torch.equal(one[0, 0], two[0, 0])
    assert [torch.equal(one[0, k], two[0, k]) for k in range(1, 5)] == [decoder == "parallel"] * 4


@pytest.mark.no_shapes
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.get("limits") == "hard"], ids=str)
def test_the_loss_of_limits_is_that_of_the_loop(kind: dict[str, object]) -> None:
    """It is returned once, with the first tokens, whatever their number."""
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


def test_the_loss_of_limits_ignores_padding() -> None:
    """In a batch, with padding between its tokens, each row has the loss and gradient that it has alone."""
    model = build(limits="hard")
    mask_BS = torch.tensor([[1, 0, 0, 1, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 0]]).bool()
    source_BS = torch.randint(4, 11, (4, 6))
    weights = [model.source_VD, *model.layers.parameters()]
    together_B = model.encode(source_BS, mask_BS).cost_B
    assert together_B is not None
    assert float(together_B[2].detach()) == 0.0
    for row in (0, 1, 3):
        alone_B = model.encode(source_BS[row : row + 1, mask_BS[row]]).cost_B
        assert alone_B is not None
        torch.testing.assert_close(together_B[row], alone_B[0])
        found = torch.autograd.grad(together_B[row], weights, retain_graph=True)
        torch.testing.assert_close(found, torch.autograd.grad(alone_B[0], weights))


@torch.no_grad()
def test_a_source_without_tokens_gives_no_nan() -> None:
    model = build().eval()
    state = model.condition(torch.zeros(2, 3, dtype=torch.long), torch.tensor([[True] * 3, [False] * 3]))
    assert bool(model.step(torch.randint(4, 13, (2, 4)), state)[0].isfinite().all())


@torch.no_grad()
@pytest.mark.parametrize("decoder", ["parallel", "tape"])
def test_padding_between_the_tokens_of_a_target_changes_nothing(decoder: str) -> None:
    """In two calls: the second continues rows of different lengths. Targets may be longer than their image."""
    model = build(decoder=decoder).eval()
    source_BS, source_mask_BS = torch.randint(4, 11, (3, 5)), torch.arange(5) < torch.tensor([5, 2, 3])[:, None]
    mask_BN = torch.tensor([[0, 1, 1, 0, 1, 1], [1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]]).bool()
    tokens_BN, token_B = torch.randint(4, 13, (3, 6)), torch.randint(4, 13, (3,))
    state, parts = model.condition(source_BS, source_mask_BS), []
    for tokens, valid in zip(tokens_BN.split([3, 3], dim=1), mask_BN.split([3, 3], dim=1), strict=True):
        logits, state = model.step(tokens, state, valid)
        parts.append(logits)
    logits_BNV, (next_BV, _) = torch.cat(parts, dim=1), model.advance(token_B, state)
    for row in range(3):
        words = torch.cat([tokens_BN[row, mask_BN[row]], token_B[row : row + 1]])[None]
        alone, _ = model.step(words, model.condition(source_BS[row : row + 1, source_mask_BS[row]]))
        torch.testing.assert_close(torch.cat([logits_BNV[row, mask_BN[row]], next_BV[row : row + 1]]), alone[0])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"saturation": 0.1}, "saturation 0.1 weighs the loss of hard limits"),
        ({"saturation": 0.0, "limits": "cutoff"}, "leave it out"),
        ({"diagonal": True, "channels": 2}, "2 have no third"),
        ({"decoder": "tape", "limits": "hard"}, "which a tape does not take"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(**settings)


def test_a_source_is_required() -> None:
    with pytest.raises(ConfigError, match="no source was given"):
        build().start()


def test_a_second_derivative_is_refused_not_wrong() -> None:
    """The backward pass is hand-written and its operations record no gradient."""
    model = build()
    x_BTD, _ = model.hidden(torch.zeros(1, 2, dtype=torch.long), model.condition(torch.tensor([[5, 6]])))
    (first,) = torch.autograd.grad(x_BTD.square().sum(), model.source_VD, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
