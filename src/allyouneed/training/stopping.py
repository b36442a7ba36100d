"""Signals that ask a run to stop."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class stop_signals:
    """While this is open, SIGINT and SIGTERM ask the run to save and stop; a second one ends it at once.

    `patient`: not even a second one: torchrun passes on what its processes may have heard already, and kills what does
    not end in time. Nor one that comes while a failed run goes down: torchrun asks the others to end as soon as one
    has, and whoever lost that one has still to close its files and to say so.
    """

    def __init__(self, stop: Callable[[], None], patient: bool = False) -> None:
        self._stop, self._patient = stop, patient
        self._old: dict[int, Any] = {}

    def __enter__(self) -> None:
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._handle)
        except ValueError:  # not in the main thread: whoever runs us there stops us in their own way
            self._old = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._stop()
        if not self._patient:
            signal.signal(number, self._old[number])

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self._patient and kind is not None:
            return
        for number, handler in self._old.items():
            signal.signal(number, handler)
