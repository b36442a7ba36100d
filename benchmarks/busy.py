"""Measure what a busy core costs: wall-clock and CPU time, quiet and beside a busy loop on one of two cores.

    python benchmarks/busy.py [--rounds 7] [--json FILE] [--first]
    GOMP_SPINCOUNT=300000 python benchmarks/busy.py      # torch's own waiting (of libgomp), for comparison

Each kind of work (busy_sides.py) and a server with 16 clients run in their own processes. They take turns, and every
round measures each of them quiet and busy. Ratios are computed per round; medians and ranges are printed. With half of
the cores, twice the time is the price of the lost core alone: the status is 1 if a median ratio is above 2.2.

`--first` gives these processes precedence over all other sessions of the machine (Linux with autogroups, as root): for
a machine on which others work.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from busy_loop import CORES, busy_loop, use_two_cores
from busy_sides import WORK

from serve import Server, make_folder, random_prompts

LIMIT = 2.2
CLIENTS, REQUESTS = 16, 96
TICKS = os.sysconf("SC_CLK_TCK")
Times = tuple[float, float]  # wall-clock seconds, CPU seconds
Measure = Callable[[], Times]


def start(name: str, held: ExitStack) -> Measure:
    """Start a process for one kind of work; return how to measure it once."""
    command = [sys.executable, str(Path(__file__).with_name("busy_sides.py")), name]
    side = held.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    assert side.stdin is not None
    assert side.stdout is not None
    to, answers = side.stdin, side.stdout
    held.callback(to.close)

    def measure() -> Times:
        print(file=to, flush=True)
        wall, cpu = json.loads(answers.readline())
        return wall, cpu

    if answers.readline() != "ready\n":
        sys.exit(f"{name}: failed; see its error above")
    return measure


def start_server(held: ExitStack) -> Measure:
    """Start a server; return how to measure the time of all requests of its clients."""
    folder = make_folder(Path(held.enter_context(tempfile.TemporaryDirectory())))
    server, prompts = Server("continuous", folder, CLIENTS), random_prompts(REQUESTS, seed=0)
    held.callback(server.close)

    def cpu() -> float:
        fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def measure() -> Times:
        began, start = cpu(), time.perf_counter()
        server.load(prompts, CLIENTS)
        return time.perf_counter() - start, cpu() - began

    measure()
    return measure


def come_first() -> None:
    """Give this session precedence over others."""
    try:
        if os.getpid() != os.getsid(0):
            os.setsid()
        Path("/proc/self/autogroup").write_text("-20", encoding="ascii")
    except OSError as error:
        sys.exit(f"--first: {error}; it needs Linux with autogroups, root, and a process that leads no group")


def spread(values: list[float]) -> str:
    """Format median and range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def table(results: dict[str, list[tuple[Times, Times]]]) -> list[str]:
    """Return the results as lines of Markdown."""
    lines = [
        "| work | quiet, s | busy, s | busy / quiet | quiet, CPU s | busy, CPU s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, rounds in results.items():
        cells = [statistics.median(one[busy][kind] for one in rounds) for kind in (0, 1) for busy in (0, 1)]
        ratio = spread([busy[0] / quiet[0] for quiet, busy in rounds])
        quiet, busy, quiet_cpu, busy_cpu = (f"{cell:.2f}" for cell in cells)
        lines.append(f"| {name} | {quiet} | {busy} | {ratio} | {quiet_cpu} | {busy_cpu} |")
    return lines


def main() -> None:
    """Measure all kinds of work and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write all times to this file")
    parser.add_argument("--first", action="store_true", help="take precedence over other sessions of the machine")
    options = parser.parse_args()
    if options.first:
        come_first()
    core = use_two_cores()[-1]
    with ExitStack() as held:
        sides = {name: start(name, held) for name in WORK}
        sides[f"serving {REQUESTS} requests of {CLIENTS} clients"] = start_server(held)
        times: dict[str, list[list[Times]]] = {name: [] for name in sides}
        for _ in range(options.rounds):
            for name in sides:
                times[name].append([])
            for busy in (False, True):
                with busy_loop(core) if busy else nullcontext():
                    for name, measure in sides.items():
                        times[name][-1].append(measure())
    results: dict[str, Any] = {name: [(quiet, busy) for quiet, busy in rounds] for name, rounds in times.items()}
    print(f"{options.rounds} rounds, {CORES} cores; medians, ratios with their range")
    print("\n".join(table(results)))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    slow = [name for name, rounds in results.items() if statistics.median(b[0] / q[0] for q, b in rounds) > LIMIT]
    if slow:
        sys.exit(f"above {LIMIT} times the quiet time: {'; '.join(slow)}")


if __name__ == "__main__":
    main()
