"""A tiny training run whose losses are stored in losses.json; `python tests/golden/golden_run.py` rewrites it."""

import json
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from allyouneed.config import parse
from allyouneed.dropout import seed_dropout
from allyouneed.models.decoder import DecoderConfig
from allyouneed.sizes import Sizes

FILE = Path(__file__).with_name("losses.json")
STEPS, VOCABULARY, BATCH, LENGTH = 20, 11, 4, 13

MODELS: dict[str, dict[str, Any]] = {
    "paper": {"norm": "post", "feedforward": "relu", "positions": "sinusoidal"},
    "modern": {"norm": "pre", "normalisation": "rms", "feedforward": "swiglu", "positions": "rotary"},
}


def losses(name: str) -> list[float]:
    """Return next-token losses of a decoder with two blocks: float64, dropout, padding, torch's AdamW."""
    torch.manual_seed(1)
    seed_dropout(2)
    settings = {"width": 12, "mixer": {"type": "softmax", "heads": 3}, "hidden": 20, "layers": 2, **MODELS[name]}
    model = parse(DecoderConfig, settings).build(Sizes(0, VOCABULARY)).double()
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    kept = []
    for _ in range(STEPS):
        tokens_BT = torch.randint(VOCABULARY, (BATCH, 1)) + torch.arange(LENGTH + 1)  # counting from a random start
        tokens_BT %= VOCABULARY
        mask_BT = torch.arange(LENGTH) < torch.randint(5, LENGTH + 1, (BATCH, 1))
        logits_BTV, _ = model.step(tokens_BT[:, :-1], model.start(), mask_BT)
        loss = F.cross_entropy(logits_BTV[mask_BT], tokens_BT[:, 1:][mask_BT])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        kept.append(loss.item())
    return kept


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: losses(name) for name in MODELS}, indent=1) + "\n")
