"""Run a benchmark with two cores while another process takes one of them.

    python benchmarks/busy_loop.py benchmarks/train_speed.py [OPTIONS OF THE BENCHMARK]

Works for every benchmark and any other Python script. Compare with the same command without the first script. The
status is that of the benchmark.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

CORES = 2


def use_two_cores() -> list[int]:
    """Restrict this process and its children to two cores; return their numbers."""
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    if len(cores) < CORES:
        sys.exit(f"one of {CORES} cores is to be taken, but this process may use only {len(cores)}")
    os.sched_setaffinity(0, cores)
    return cores


@contextmanager
def busy_loop(core: int) -> Iterator[None]:
    """Keep a core busy while this context is open."""
    code = (
        f"import os; os.sched_setaffinity(0, [{core}])\nwhile os.getppid() == {os.getpid()}:\n for _ in range(10**6): 0"
    )
    process = subprocess.Popen([sys.executable, "-S", "-c", code])
    try:
        time.sleep(0.3)  # it has started
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Run a script beside a busy loop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("script", help="a benchmark")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its options")
    options = parser.parse_args()
    with busy_loop(use_two_cores()[-1]):
        status = subprocess.run([sys.executable, options.script, *options.arguments], check=False).returncode
    sys.exit(status)


if __name__ == "__main__":
    main()
