"""Compare the hand-written gradient of the Neural GPU's unit with autograd's.

    python benchmarks/cgru_speed.py [--batch 32] [--steps 20] [--rounds 5]

Measures forward and backward time per step: diagonal gates, hard limits with their loss, dropout. Both arms compute the
same, with channels last; before anything is timed, outputs and gradients must agree (without dropout, whose masks
differ). The arms alternate in one process with one thread; CPU time is compared.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from allyouneed.malloc import keep_freed_memory
from allyouneed.models.parts.cgru import CGRU, EDGE, CGRUShape, convolved, shifted
from allyouneed.version import __version__

IMAGES = ((1, 22, 48), (1, 42, 48), (4, 42, 24))  # rows, columns, channels
Step = Callable[[CGRU, Tensor], tuple[Tensor, Tensor]]


def by_hand(unit: CGRU, s_BWLD: Tensor) -> tuple[Tensor, Tensor]:
    new: tuple[Tensor, Tensor] = unit(s_BWLD)
    return new


def by_autograd(unit: CGRU, s_BWLD: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the same with torch's own functions."""
    around, D = unit.shape.around, unit.channels
    assert unit.gates.bias is not None
    assert unit.candidate.bias is not None
    x_BWLN = convolved(s_BWLD, unit.gates.weight, unit.gates.bias, around)
    u_BWLD, r_BWLD = (0.5 + 0.5 * x_BWLN).clamp(0, 1).split(D, dim=3)
    y_BWLD = convolved(r_BWLD * s_BWLD, unit.candidate.weight, unit.candidate.bias, around)
    c_BWLD = F.dropout(y_BWLD.clamp(-1, 1), unit.dropout, unit.training)
    over = sum((x.abs() - EDGE).clamp(min=0).sum(dim=(1, 2, 3)) for x in (x_BWLN, y_BWLD))
    return u_BWLD * shifted(s_BWLD) + (1 - u_BWLD) * c_BWLD, over / (s_BWLD.shape[1] * D)


def run(step: Step, unit: CGRU, s_BWLD: Tensor, steps: int) -> Tensor:
    """Run `steps` steps and differentiate the loss."""
    unit.zero_grad()
    cost = s_BWLD.new_zeros(())
    for _ in range(steps):
        s_BWLD, more_B = step(unit, s_BWLD)
        cost = cost + more_B.sum()
    loss = s_BWLD.square().mean() + 1e-3 * cost
    loss.backward()
    return loss.detach()


def check_parity(unit: CGRU, s_BWLD: Tensor) -> None:
    """Exit unless both arms compute the same."""
    unit.eval()
    found = []
    for step in (by_hand, by_autograd):
        loss = run(step, unit, s_BWLD, 3)
        found.append([loss, *(p.grad.clone() for p in unit.parameters() if p.grad is not None)])
    for one, two in zip(*found, strict=True):
        if not torch.allclose(one, two, rtol=1e-3, atol=1e-6):
            raise SystemExit("the arms compute different results; nothing is timed")
    unit.train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32, help="batch size (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="steps of the unit per pass (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    torch.manual_seed(1)
    print(f"B:{options.batch}|steps:{options.steps}|threads:1|torch:{torch.__version__}|v:{__version__}")
    print("| image (rows x columns x channels) | by hand, CPU ms per step | autograd | by hand : autograd |")
    print("| --- | --- | --- | --- |")
    for rows, columns, channels in IMAGES:
        unit = CGRU(channels, CGRUShape(True, True, True, (1 if rows > 1 else 0, 1)), 0.06)
        s_BWLD = torch.randn(options.batch, rows, columns, channels)
        check_parity(unit, s_BWLD)
        times: dict[Step, list[float]] = {by_hand: [], by_autograd: []}
        for turn in range(options.rounds + 1):
            for step, spent in times.items():
                started = time.process_time()
                run(step, unit, s_BWLD, options.steps)
                if turn:  # the first round is warm-up
                    spent.append(1e3 * (time.process_time() - started) / options.steps)
        ratios = [one / two for one, two in zip(times[by_hand], times[by_autograd], strict=True)]
        middle = [f"{statistics.median(spent):.1f}" for spent in times.values()]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}, n={len(ratios)})"
        print(f"| {rows} x {columns} x {channels} | {' | '.join(middle)} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
