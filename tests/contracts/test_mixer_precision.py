"""Under autocast, outputs and gradients differ from those in float32 by a few units of the half-precision type."""

import pytest
import torch
from mixer_contracts import CASES, CONTRACTS, Case, Read, inputs, run
from torch import Tensor

HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
# In units of the type's epsilon. Largest found over six seeds of every case: 1.6 and 6.7 for 7 positions (xl, whose
# softmax is saturated there), 2.1 and 0.9 for 700 positions.
OUTPUT, GRADIENT, LONG = 3.0, 10.0, 3.0


def errors(case: Case, dtype: torch.dtype, length: int, mean: float) -> tuple[float, float]:
    """Return the relative errors of outputs and of all gradients, in units of epsilon."""
    mixer = case.build(torch.float32)
    x_BTD, memory_BSD = (
        None if x is None else (x.detach().float() + mean).requires_grad_() for x in inputs(case, T=length, S=length)
    )
    assert x_BTD is not None
    sources = [x for x in (x_BTD, memory_BSD, *mixer.parameters()) if x is not None]
    noise_BTD = mean + torch.randn_like(x_BTD)
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype, enabled=enabled):
            y_BTD, _ = run(mixer, x_BTD, Read(memory_BSD))
        loss = (y_BTD.float() * noise_BTD).sum()
        gradients = torch.autograd.grad(loss, sources, materialize_grads=True)
        found.append((y_BTD.detach().float(), torch.cat([gradient.flatten() for gradient in gradients])))
    whole, half = found
    return _units(half[0], whole[0], dtype), _units(half[1], whole[1], dtype)


def _units(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> float:
    return float((ours - theirs).norm() / theirs.norm()) / torch.finfo(dtype).eps


@pytest.mark.parametrize("case", [c for c in CASES if c.position == "none"], ids=str)
@HALF
def test_half_precision_is_as_exact_as_its_type(case: Case, dtype: torch.dtype) -> None:
    output, gradient = errors(case, dtype, length=7, mean=0.0)
    assert output < OUTPUT
    assert gradient < GRADIENT


FIRST = [c for c in CASES if c.position == "none" and c.config == CONTRACTS[c.name].settings[0]]


@pytest.mark.no_shapes
@pytest.mark.parametrize("case", FIRST, ids=str)
@HALF
def test_long_sums_are_not_rounded_away(case: Case, dtype: torch.dtype) -> None:
    """A sum of terms with a mean stagnates after 256 of them in bfloat16, unless it is kept in float32."""
    length = min(700, getattr(case.config, "max_length", 700))
    output, gradient = errors(case, dtype, length, mean=1.0)
    assert output < LONG
    assert gradient < LONG
