"""Compare the cost of a decoding step at position 100 and at a far position, for every causal mixer.

    python benchmarks/decode_positions.py [--far 16384] [--steps 200]

One layer of width 256 with 4 heads, batch 1, one thread; CPU time, median of five interleaved rounds.
"""

import argparse
import statistics
import time

import torch

from allyouneed.config import parse
from allyouneed.mixers import MIXERS, Mixer, State

WIDTH = 256
# Settings that make each mixer read about 256 positions, if its defaults do not.
SETTINGS: dict[str, dict[str, object]] = {
    "window": {"window": 256},
    "performer": {"features": 256},
    "xl": {"memory": 256},
    "compressive": {"memory": 128, "compressed": 128},
}


def state_at(mixer: Mixer, position: int) -> State:
    _, state = mixer(torch.randn(1, position, WIDTH))
    return state


def step_time(mixer: Mixer, state: State, steps: int) -> float:
    """Return the CPU seconds of a step."""
    x_BD = torch.randn(1, WIDTH)
    start = time.process_time()
    for _ in range(steps):
        _, state = mixer.advance(x_BD, state=state)
    return (time.process_time() - start) / steps


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--far", type=int, default=16384, help="the far position (default: %(default)s)")
    arguments.add_argument("--steps", type=int, default=200, help="steps per round (default: %(default)s)")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        for name in [name for name, config in MIXERS.items() if "causal" in config.roles]:
            heads = {"heads": 4} if "heads" in MIXERS[name].model_fields else {}  # recurrences have no heads
            settings = {"type": name, **heads, **SETTINGS.get(name, {})}
            mixer = parse(MIXERS[name], settings).build(WIDTH, role="causal")
            near, far = state_at(mixer, 100), state_at(mixer, options.far)
            runs = [(step_time(mixer, near, options.steps), step_time(mixer, far, options.steps)) for _ in range(5)]
            at_near, at_far = (statistics.median(run[side] for run in runs) * 1e3 for side in (0, 1))
            ratios = sorted(late / early for early, late in runs)
            print(
                f"{name:17} position 100: {at_near:.3f} ms, position {options.far:,}: {at_far:.3f} ms per step; "
                f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
