"""Compressive Transformer: its kin, its line of slots and positions, and the loss that its compression learns by."""

from typing import Any

import pytest
import torch
from torch import Tensor

from allyouneed.config import parse
from allyouneed.mixers import detach
from allyouneed.mixers.base import send_losses_to
from allyouneed.mixers.compressive import Compressive, CompressiveConfig
from allyouneed.mixers.xl import XLConfig
from allyouneed.models.decoder import DecoderConfig
from allyouneed.sizes import Sizes
from allyouneed.tasks.base import Batch
from allyouneed.tasks.loss import batch_loss

WIDTH = 12


def built(**settings: Any) -> Compressive:
    mixer = CompressiveConfig(heads=3, **settings).build(WIDTH).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(std=0.4)
    return mixer


def text(length: int, rows: int = 2) -> Tensor:
    return torch.randn(rows, length, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize(("memory", "compressed", "kin"), [(5, 0, 5), (5, 4, 9), (20, 30, 50)])
def test_groups_of_one_position_are_a_longer_memory_of_xl(memory: int, compressed: int, kin: int) -> None:
    mixer = built(memory=memory, compressed=compressed, rate=1, compression="mean")
    xl = XLConfig(heads=3, memory=kin).build(WIDTH).double()
    xl.load_state_dict(mixer.state_dict())
    x_BTD = text(90)
    torch.testing.assert_close(mixer(x_BTD)[0], xl(x_BTD)[0])


def test_without_slots_and_before_anything_is_compressed_it_is_xl() -> None:
    mixer = built(memory=8, compressed=4, rate=3)
    xl = XLConfig(heads=3, memory=100).build(WIDTH).double()
    xl.load_state_dict({name: tensor for name, tensor in mixer.state_dict().items() if "compress" not in name})
    x_BTD = text(11)
    torch.testing.assert_close(mixer(x_BTD)[0], xl(x_BTD)[0])
    assert not torch.allclose(mixer(text(12))[0][:, -1], xl(text(12))[0][:, -1])


@pytest.mark.parametrize(
    "settings", [{"memory": 4, "compressed": 6, "rate": 3}, {"memory": 7, "compressed": 2, "rate": 4}]
)
def test_long_sequences_in_tiles_equal_single_steps(settings: dict[str, int]) -> None:
    mixer, x_BTD = built(**settings), text(75)
    with torch.no_grad():
        whole_BTD, state = mixer(x_BTD)[0], None
        for t in range(75):
            y_BD, state = mixer.advance(x_BTD[:, t], state=state)
            torch.testing.assert_close(y_BD, whole_BTD[:, t])
        assert state.recent.length < settings["memory"] + settings["rate"]
        assert state.slots.length == settings["compressed"]


def collected(mixer: Compressive, x_BTD: Tensor, **given: Any) -> list[Tensor]:
    found: list[Tensor] = []
    with send_losses_to(found.append):
        mixer(x_BTD, **given)
    return found


def test_the_loss_of_compression_is_the_papers() -> None:
    """|| attn(q, old) - attn(q, f(old)) ||^2, for what left the memory while the segment was read."""
    mixer, x_BTD = built(memory=2, compressed=3, rate=2), text(11)
    assert not collected(mixer, x_BTD[:, :3])  # nothing has left
    _, state = mixer(x_BTD[:, :6])  # groups 0 and 1 are old to position 6
    (loss,) = collected(mixer, x_BTD[:, 6:11], state=state)  # groups 2 and 3 become old
    query, key, value = mixer.project.query_key_value.weight.split(WIDTH)
    biases = mixer.project.query_key_value.bias.split(WIDTH)
    expected = torch.zeros((), dtype=torch.float64)
    for row in x_BTD:
        old = row[4:8]
        slots = torch.stack([mixer.compress(torch.cat([row[4], row[5]])), mixer.compress(torch.cat([row[6], row[7]]))])
        for t in range(6, 11):
            for head in range(3):
                mine = slice(4 * head, 4 * head + 4)
                q = query[mine] @ row[t] + biases[0][mine]
                read = []
                for y in (old, slots):
                    k, v = y @ key[mine].T + biases[1][mine], y @ value[mine].T + biases[2][mine]
                    read.append((k @ q / 2).softmax(dim=0) @ v)
                expected = expected + (read[0] - read[1]).square().sum() / WIDTH
    torch.testing.assert_close(loss, expected)
    mine = torch.autograd.grad(loss, list(mixer.compress.parameters()))
    torch.testing.assert_close(mine, torch.autograd.grad(expected, list(mixer.compress.parameters())))


def test_neither_loss_reaches_the_others_weights() -> None:
    mixer, x_BTD = built(memory=2, compressed=3, rate=2), text(12).requires_grad_()
    names = dict(mixer.named_parameters())
    total = torch.stack(collected(mixer, x_BTD)).sum()
    found = torch.autograd.grad(total, [x_BTD, *names.values()], allow_unused=True)
    reached = {name for name, gradient in zip(["x", *names], found, strict=True) if gradient is not None}
    assert reached == {"compress.weight", "compress.bias"}
    task = torch.autograd.grad(mixer(x_BTD)[0].sum(), list(names.values()), allow_unused=True)
    unreached = {name for name, gradient in zip(names, task, strict=True) if gradient is None}
    assert unreached == {"compress.weight", "compress.bias"}


def test_descending_the_loss_makes_slots_tell_what_was_there() -> None:
    torch.manual_seed(0)
    mixer = built(memory=4, compressed=4, rate=2)
    optimiser = torch.optim.Adam(mixer.compress.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        loss = torch.stack(collected(mixer, text(40))).sum()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])


def test_the_reconstruction_loss_is_in_the_objective_but_not_in_the_score() -> None:
    mixer = {"type": "compressive", "heads": 2, "memory": 2, "compressed": 2, "rate": 2}
    tree = {"width": 8, "hidden": 16, "layers": 2, "dropout": 0.0, "mixer": mixer, "positions": "none"}
    model = parse(DecoderConfig, tree).build(Sizes(0, 9))
    tokens_BT = torch.randint(3, 9, (2, 13))
    batch = Batch(input_BT=tokens_BT[:, :-1], output_BT=tokens_BT[:, 1:], segment=4)
    loss = batch_loss(model, batch)
    assert isinstance(loss.beside, Tensor)
    assert loss.beside > 0
    torch.testing.assert_close(loss.objective, loss.total + loss.beside)
    with torch.no_grad():
        alone = batch_loss(model, batch)
    assert alone.beside == 0
    torch.testing.assert_close(alone.total, loss.total)
    loss.objective.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_detached_state_goes_on_to_the_same_outputs() -> None:
    mixer, x_BTD = built(memory=3, compressed=2, rate=2), text(20)
    _, state = mixer(x_BTD[:, :13])
    torch.testing.assert_close(mixer(x_BTD[:, 13:], state=detach(state))[0], mixer(x_BTD)[0][:, 13:])


def test_stretched_training_compresses_nothing_within_a_segment() -> None:
    """Position t of a segment reads what a memory reads that is longer by the way from the segment's beginning to t."""
    settings = {"heads": 3, "compressed": 3, "rate": 2, "compression": "mean"}
    stretched = parse(CompressiveConfig, {**settings, "memory": 4, "stretch": True}).build(12).double()
    x_BTD = torch.randn(2, 31, 12, dtype=torch.float64)
    _, state = stretched(x_BTD[:, :13])
    y_BTD, _ = stretched(x_BTD[:, 13:], state=state)
    with torch.no_grad():
        _, state = stretched(x_BTD[:, :13])
        torch.testing.assert_close(stretched(x_BTD[:, 13:], state=state)[0], y_BTD)
    for t in range(13, 31):
        exact = parse(CompressiveConfig, {**settings, "memory": 4 + t - 13}).build(12).double()
        exact.load_state_dict(stretched.state_dict())
        torch.testing.assert_close(y_BTD[:, t - 13], exact(x_BTD)[0][:, t])
    exact = parse(CompressiveConfig, {**settings, "memory": 4}).build(12).double()
    exact.load_state_dict(stretched.state_dict())
    torch.testing.assert_close(stretched.eval()(x_BTD)[0], exact(x_BTD)[0])
