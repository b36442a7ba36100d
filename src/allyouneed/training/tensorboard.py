"""TensorBoard events beside the log, if tensorboard is installed (`pip install allyouneed[tensorboard]`)."""

import importlib.util
from pathlib import Path
from typing import Any


class Board:
    """A TensorBoard writer for log records: one curve over steps for each number."""

    def __init__(self, folder: Path, enabled: bool = True) -> None:
        self._writer: Any = None
        if enabled and importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder))

    def add(self, record: dict[str, Any]) -> None:
        """Write every number in a log record at the step of that record."""
        if self._writer is None:
            return
        for name, value in record.items():
            if isinstance(value, float) or name == "tokens":
                self._writer.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()
