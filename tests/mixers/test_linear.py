"""Linear attention over long texts: segments show neither in what is read nor in what it costs."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from allyouneed.mixers import linear, performer
from allyouneed.mixers.base import MixerConfig
from allyouneed.mixers.linear import LinearConfig
from allyouneed.mixers.performer import PerformerConfig

CASES = [(linear, LinearConfig(heads=2)), (performer, PerformerConfig(heads=2, features=6))]


@pytest.mark.parametrize(("module", "config"), CASES, ids=["linear", "performer"])
@pytest.mark.parametrize("length", [32, 33, 47])
def test_segments_do_not_show(
    monkeypatch: pytest.MonkeyPatch, module: object, config: MixerConfig, length: int
) -> None:
    mixer = config.build(8).double()
    x_BTD = torch.randn(2, length, 8, dtype=torch.float64)
    mask_BT = torch.rand(2, length) < 0.7
    whole = [mixer(x_BTD)[0], mixer(x_BTD, mask_BT=mask_BT)[0][mask_BT]]
    monkeypatch.setattr(module, "SEGMENT", 16)
    torch.testing.assert_close([mixer(x_BTD)[0], mixer(x_BTD, mask_BT=mask_BT)[0][mask_BT]], whole)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        mixer(x_BTD[:1])
    assert config.cost(length, 8).flops == counter.get_total_flops()
