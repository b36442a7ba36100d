"""Tokenisers are trained in a child process, so that the parent handles signals and can stop the training.

The child is `python -m allyouneed.text.tokenizer_process`. Its standard input holds the settings as one line of JSON,
then each text as its length (4 bytes) and its UTF-8 bytes, and `END`. It stays open: when it closes, the parent process
is gone, and the child ends. Standard output receives one JSON value; standard error receives the library's progress,
one JSON value a line.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import IO, Any

END = b"\xff\xff\xff\xff"
ANYTHING = "surrogatepass"  # texts may hold lone surrogates

TrainProgress = Callable[[int, int], None]  # tokens learnt, tokens to learn


def train_in_child(
    texts: Iterable[str], settings: dict[str, Any], progress: TrainProgress | None = None
) -> dict[str, str]:
    """Send texts and settings to a child process, and return its answer: a `tokenizer`, or an `error`."""
    command = [sys.executable, "-m", "allyouneed.text.tokenizer_process"]
    # In a process group of its own: Ctrl-C reaches the parent alone, which then stops the child.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        lines: list[str] = []
        follower = threading.Thread(target=_follow, args=(child.stderr, progress, lines), daemon=True)
        follower.start()
        try:
            with suppress(BrokenPipeError):  # the child ended early; its answer has the reason
                _send(child.stdin, texts, settings)
            answer = child.stdout.read()
        except BaseException:
            child.kill()
            raise
        finally:
            with suppress(OSError):  # texts that were not sent are lost with the child
                child.stdin.close()
            child.wait()
            follower.join()
    if not answer:
        reason = lines[-1] if lines else f"exit status {child.returncode}; is there enough memory?"
        return {"error": f"its process ended without a result: {reason}"}
    found: dict[str, str] = json.loads(answer)
    return found


def _send(stdin: IO[bytes], texts: Iterable[str], settings: dict[str, Any]) -> None:
    stdin.write(json.dumps(settings).encode() + b"\n")
    for text in texts:
        raw = text.encode("utf-8", ANYTHING)
        stdin.write(len(raw).to_bytes(4, "little") + raw)
    stdin.write(END)
    stdin.flush()


def _follow(stderr: IO[bytes], progress: TrainProgress | None, lines: list[str]) -> None:
    """Read the progress of a child until it ends. Other output goes to `lines`."""
    for raw in stderr:
        line = raw.decode("utf-8", "replace").strip()
        try:
            state = json.loads(line)
            done, total, stage = int(state["current"]), int(state["total"]), state["stage"]
        except (ValueError, KeyError, TypeError):
            lines.append(line)
            continue
        if progress is not None and stage == "Compute merges":
            progress(done, total)
