"""Clause 5 of the mixer contract: a mixer learns to copy."""

import pytest
import torch
from mixer_contracts import CONTRACTS, ROLES
from torch import Tensor, nn

from allyouneed.block import Block, BlockConfig
from allyouneed.mixers import Memory, MixerConfig, Role
from allyouneed.positions import SinusoidalConfig

LEARNING_RATE = 8e-3  # copying is learned with it from any seed; half of it is not enough


class Copier(nn.Module):
    """Two blocks around a mixer. Causal: text and separator, then the text again. Otherwise: the text in reverse."""

    def __init__(self, config: MixerConfig, role: Role, symbols: int, width: int) -> None:
        super().__init__()
        self.role = role
        settings = BlockConfig(norm="pre", hidden=2 * width, dropout=0.0)
        self.embedding = nn.Embedding(symbols + 1, width)
        self.place = SinusoidalConfig().build_added(width)
        # A block may also have a cross mixer; here the mixer under test is the only one.
        self.blocks = nn.ModuleList(Block(settings, width, config.build(width, role=role)) for _ in range(2))
        self.head = nn.Linear(width, symbols + 1)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = self.embedding(tokens_BT) + self.place(torch.arange(tokens_BT.shape[1]))
        for block in self.blocks:
            x_BTD, _ = block(x_BTD)
        logits_BTV: Tensor = self.head(x_BTD)
        return logits_BTV


class Reader(Copier):
    """The cross mixer alone: positions without content ask a memory that holds the text."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        place_TD = self.place(torch.arange(tokens_BT.shape[1]))
        memory = Memory(self.embedding(tokens_BT) + place_TD)
        x_BTD = place_TD.expand_as(memory.x_BSD)
        for block in self.blocks:
            assert isinstance(block, Block)
            x_BTD = x_BTD + block.mixer(x_BTD, memory=memory)[0]
            x_BTD = x_BTD + block.feedforward(x_BTD)
        logits_BTV: Tensor = self.head(x_BTD)
        return logits_BTV


@pytest.mark.slow
@pytest.mark.no_shapes
@pytest.mark.parametrize(
    ("name", "role"),
    [(name, role) for name in CONTRACTS for role in ROLES if role in CONTRACTS[name].settings[0].roles],
)
def test_it_learns_to_copy(name: str, role: Role) -> None:
    symbols, length, steps = 8, 6, CONTRACTS[name].copies_after
    model = (Reader if role == "cross" else Copier)(CONTRACTS[name].settings[0], role, symbols, width=48)
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    correct = 0.0
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * min(1, (step + 1) / 20) * (1 - step / steps)
        text_BT = torch.randint(symbols, (48, length))
        inputs_BT, wanted_BT = text_BT, text_BT.flip(1)
        if role == "causal":
            inputs_BT = torch.cat([text_BT, torch.full((48, 1), symbols), text_BT[:, :-1]], dim=1)
            wanted_BT = text_BT
        logits_BTV = model(inputs_BT)[:, -length:]
        loss = nn.functional.cross_entropy(logits_BTV.flatten(0, 1), wanted_BT.flatten())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        correct = float((logits_BTV.argmax(dim=-1) == wanted_BT).float().mean())
    assert correct > 0.95
