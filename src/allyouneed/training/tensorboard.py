"""TensorBoard events beside the log, if tensorboard is installed (`pip install allyouneed[tensorboard]`); else
nothing."""

import importlib.util
from pathlib import Path
from typing import Any


class Board:
    """Numbers of log records as curves over steps."""

    def __init__(self, folder: Path, wanted: bool = True) -> None:
        self._writer: Any = None
        if wanted and importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder))

    def add(self, record: dict[str, Any]) -> None:
        """Every number of a record of a step."""
        if self._writer is None:
            return
        for name, value in record.items():
            if isinstance(value, float) or name == "tokens":
                self._writer.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def close(self) -> None:
        """Writes what is left."""
        if self._writer is not None:
            self._writer.close()
