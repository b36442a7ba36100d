"""How long tests wait: for a condition, and at most for how long."""

import time
from collections.abc import Callable

# Seconds after which a wait fails. No test depends on the speed of the machine: this is far more than any wait takes on
# a busy one.
PATIENCE = 300.0


def until(condition: Callable[[], object], interval: float = 0.01) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"not true after {PATIENCE:g} seconds"
        time.sleep(interval)
