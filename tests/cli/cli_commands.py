"""Runs commands in separate processes; the settings of the tiny models for them."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src"), "OMP_NUM_THREADS": "1"}
HEADS = 'model.mixer={type="softmax",heads=2}'
SMALL = ["--set", "model.width=16", "--set", "model.hidden=16", "--set", "train.log_every=5"]
# Two micro-batches, one for each core. One micro-batch of this size on two threads would wait in barriers.
SMALL += ["--set", "train.accumulate=2"]
NUMBERS = [
    *("--task", "numbers", "--model", "encoder-decoder", "--steps", "30", *SMALL),
    *("--set", HEADS, "--set", "model.encoder_layers=1", "--set", "model.decoder_layers=1"),
    *("--set", "task.up_to=99", "--set", "task.pairs=60", "--set", "task.valid=10", "--set", "task.test=20"),
    *("--set", "task.batch_tokens=512", "--set", "train.optimizer.lr=0.01"),
]


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    status: int
    out: str
    err: str
    kibibytes: int  # peak memory


class Commands:
    """A runner of commands in separate processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._forker = subprocess.Popen(
            [sys.executable, str(HERE / "forker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )

    def __call__(
        self, *arguments: str, given: str | bytes = b"", folder: Path | None = None, out: str | None = None
    ) -> Done:
        """Run `allyouneed ARGUMENTS` with the given standard input."""
        names = {name: str(self.folder / name) for name in ("stdin", "stdout", "stderr")}
        for name in names.values():
            Path(name).write_bytes(b"")
        Path(names["stdin"]).write_bytes(given.encode() if isinstance(given, str) else given)
        request = {**names, "stdout": out or names["stdout"]}
        request |= {"folder": str(folder or self.folder), "arguments": list(arguments)}  # type: ignore[dict-item]
        assert self._forker.stdin is not None
        assert self._forker.stdout is not None
        print(json.dumps(request), file=self._forker.stdin, flush=True)
        status, kibibytes = json.loads(self._forker.stdout.readline())
        texts = [Path(names[name]).read_bytes().decode() for name in ("stdout", "stderr")]
        return Done(status, *texts, kibibytes)

    def close(self) -> None:
        """Stop the process that forks."""
        with self._forker:
            assert self._forker.stdin is not None
            self._forker.stdin.close()
