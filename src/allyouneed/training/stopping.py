"""Signals that request a run to stop."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from allyouneed.errors import UserError


class Interrupted(UserError):
    """The run was requested to stop. The same command continues from a checkpoint, or a stage of preparation."""

    status = 130


class stop_signals:
    """Call `stop` on SIGINT and SIGTERM while this context is open; by default a second signal ends the run at once.

    `keep_handling`: a second signal calls `stop` again, as torchrun forwards signals that its processes may have
    received already, and kills those that do not end in time. Signals also stay handled while a failed run shuts down:
    torchrun stops the other processes as soon as one has ended, and they have still to close files and report the loss.
    """

    def __init__(self, stop: Callable[[], None], keep_handling: bool = False) -> None:
        self._stop, self._keep_handling = stop, keep_handling
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> None:
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        except ValueError:  # not in the main thread: the caller stops the run by other means
            self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._keep_handling:
            signal.signal(number, self._previous[number])
        self._stop()  # last: it may raise

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self._keep_handling and kind is not None:
            return
        for number, handler in self._previous.items():
            signal.signal(number, handler)
