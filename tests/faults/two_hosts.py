"""Two hosts: two network namespaces with a cable between them, one process of a run on each.

    python tests/faults/two_hosts.py        # needs root and iproute2; exits with status 77 otherwise

For ddp and fsdp: the run ends with the losses of a run by one process; then the process on the second host is killed,
the first host exits with one clear line, and the same two commands resume and end with the same losses.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from allyouneed.training.log import read_log

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = 77
ADDRESSES = ("10.213.77.1", "10.213.77.2")
TOLERANCE = 1e-4  # float32: sums in another order
RECIPE = """
seed = 3
[task]
type = "copy"
batch = 8
valid = 8
test = 8
[model]
type = "encoder-decoder"
width = 16
hidden = 24
encoder_layers = 1
decoder_layers = 1
mixer = { type = "softmax", heads = 2 }
[train]
budget = { steps = STEPS }
accumulate = 2
workers = 1
evaluate_every = 0.1
log_every = 1
[decode]
beam = 1
"""


class NoNamespaces(Exception):
    """This machine does not allow network namespaces."""


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNamespaces(f"ip {' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def hosts() -> Iterator[list[str]]:
    """Yield the names of two network namespaces that reach only each other."""
    if shutil.which("ip") is None:
        raise NoNamespaces("iproute2 is not installed")
    names = [f"ayn{os.getpid()}{side}" for side in "ab"]
    cables = [f"ayn{os.getpid() % 10**6}{side}" for side in "ab"]
    made: list[str] = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", cables[0], "netns", names[0], "type", "veth", "peer", "name", cables[1], "netns", names[1])
        for name, cable, address in zip(names, cables, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], check=False)  # removes its end of the cable too


def on_core(number: int) -> Callable[[], None]:
    """Return a function that pins a process to one core: threads that wait for each other would measure other load."""
    cores = sorted(os.sched_getaffinity(0))
    return lambda: os.sched_setaffinity(0, {cores[number % len(cores)]})


def environment(cable: str = "") -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        **({"GLOO_SOCKET_IFNAME": cable} if cable else {}),
    }


def train_on(names: list[str], recipe: Path, run: Path, parallel: str) -> list["subprocess.Popen[str]"]:
    """Start the command of each host as docs/distributed.md shows it."""
    train = ["-m", "allyouneed", "train", str(recipe), "--out", str(run), "--set", f"train.parallel={parallel}"]
    started = []
    for number, name in enumerate(names):
        meet = ["--nnodes", "2", "--node-rank", str(number), "--master-addr", ADDRESSES[0], "--master-port", "29500"]
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", *meet, *train]
        cable = f"ayn{os.getpid() % 10**6}{'ab'[number]}"
        started.append(
            subprocess.Popen(
                ["ip", "netns", "exec", name, *command],
                env=environment(cable),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=on_core(number),
            )
        )
    return started


def ended(started: list["subprocess.Popen[str]"]) -> tuple[list[int], str]:
    errors = [process.communicate(timeout=600)[1] for process in started]
    return [process.returncode for process in started], "".join(errors)


def losses(run: Path) -> dict[tuple[str, int], float]:
    return {(r["kind"], r["step"]): r["loss"] for r in read_log(run / "log.jsonl") if "loss" in r}


def require_same(run: Path, expected: Path) -> float:
    ours, theirs = losses(run), losses(expected)
    if ours.keys() != theirs.keys():
        raise SystemExit(f"{run}: other steps were logged")
    worst = max(abs(ours[key] - theirs[key]) for key in ours)
    if worst > TOLERANCE:
        raise SystemExit(f"{run}: a loss differs by {worst:.2g}")
    return worst


def worker_of(host: "subprocess.Popen[str]") -> int:
    """Return the process started by the host's torchrun (`ip netns exec` replaces itself with torchrun)."""
    return int(Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text().split()[0])


def try_all(names: list[str], folder: Path, steps: int) -> None:
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.replace("STEPS", str(steps)))
    alone = [sys.executable, "-m", "allyouneed", "train", str(recipe), "--out", str(folder / "alone")]
    subprocess.run(alone, env=environment(), check=True, capture_output=True, preexec_fn=on_core(0))
    for parallel in ("ddp", "fsdp"):
        codes, errors = ended(train_on(names, recipe, folder / parallel, parallel))
        if codes != [0, 0]:
            raise SystemExit(f"{parallel}: ended with {codes}:\n{errors}")
        worst = require_same(folder / parallel, folder / "alone")
        print(f"{parallel}: two hosts make the run of one; largest difference of a loss {worst:.2g}", flush=True)
        killed = folder / f"{parallel}-killed"
        started = train_on(names, recipe, killed, parallel)
        while not list(killed.glob("checkpoints/step-*")):
            if started[0].poll() is not None:
                raise SystemExit(f"{parallel}: ended too soon:\n{ended(started)}")
            time.sleep(0.02)
        os.kill(worker_of(started[1]), signal.SIGKILL)
        start = time.monotonic()
        codes, errors = ended(started)
        lines = [line for line in errors.splitlines() if line.startswith("error: ")]
        if 0 in codes or len(lines) != 1 or "another process of this run has ended" not in lines[0]:
            raise SystemExit(f"{parallel}: after a kill on the second host: {codes}\n{errors}")
        print(
            f"{parallel}: a process was killed, both hosts ended within {time.monotonic() - start:.1f} s",
            flush=True,
        )
        codes, errors = ended(train_on(names, recipe, killed, parallel))
        if codes != [0, 0] or "resuming from step" not in errors:
            raise SystemExit(f"{parallel}: did not resume: {codes}\n{errors}")
        require_same(killed, folder / "alone")
        print(f"{parallel}: the same commands resumed and ended with the same losses", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    try:
        with hosts() as names, tempfile.TemporaryDirectory() as folder:
            try_all(names, Path(folder), options.steps)
    except NoNamespaces as error:
        print(f"skipped: two hosts: no network namespaces here ({error})")
        sys.exit(SKIPPED)


if __name__ == "__main__":
    main()
