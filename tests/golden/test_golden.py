"""Training goes exactly as it went when the golden file was written (see README.md here before changing it)."""

import json

import pytest
from golden_run import FILE, MODELS, losses


def test_every_model_is_kept() -> None:
    assert set(json.loads(FILE.read_text())) == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_losses(name: str) -> None:
    assert losses(name) == pytest.approx(json.loads(FILE.read_text())[name], rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_it_learns(name: str) -> None:
    kept = json.loads(FILE.read_text())[name]
    assert kept[-1] < 0.8 * kept[0]
