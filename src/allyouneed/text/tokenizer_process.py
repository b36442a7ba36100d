"""The child process that trains a tokeniser: `python -m allyouneed.text.tokenizer_process`; see `child_training.py`."""

import json
import os
import sys
from collections.abc import Iterator
from typing import IO

from allyouneed.errors import ConfigError
from allyouneed.processes import end_with_parent
from allyouneed.text.child_training import ANYTHING, END
from allyouneed.text.tokenizer import TokenizerConfig, train_pieces


def main() -> None:
    """Train on what the parent sends."""
    settings = json.loads(sys.stdin.buffer.readline())
    config = TokenizerConfig.model_validate(settings["config"])
    try:
        tokenizer = train_pieces(_receive(sys.stdin.buffer), config, settings["sentences"], show_progress=True)
        answer = {"tokenizer": tokenizer.to_json()}
    except ConfigError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # without waiting for the thread that watches the parent


def _receive(stdin: IO[bytes]) -> Iterator[str]:
    """Yield the texts that the parent sends."""
    while (size := stdin.read(4)) != END:
        raw = stdin.read(int.from_bytes(size, "little"))
        if len(size) < 4:
            os._exit(1)  # the parent is gone
        yield raw.decode("utf-8", ANYTHING)
    end_with_parent()


if __name__ == "__main__":
    main()
