"""Training gives exactly the stored losses (read README.md here before changing them)."""

import json

import pytest
from golden_run import FILE, MODELS, losses


def test_every_model_has_stored_losses() -> None:
    assert set(json.loads(FILE.read_text())) == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_losses_equal_the_stored_ones(name: str) -> None:
    assert losses(name) == pytest.approx(json.loads(FILE.read_text())[name], rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_falls(name: str) -> None:
    kept = json.loads(FILE.read_text())[name]
    assert kept[-1] < 0.8 * kept[0]
