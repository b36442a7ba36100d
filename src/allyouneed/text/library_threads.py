"""When the tokenizers library may use threads.

The library warns when a process that used its threads is forked. So they are off, and `THREADS` enables them.
"""

import os
import threading

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class _Threads:
    """A context in which the library may use threads. Elsewhere it may not, so that a fork is safe and silent.

    The setting is process-wide, and calls overlap in the threads of a server. The first call to enter stores the old
    setting; the last one to leave restores it.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, "false"

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = os.environ["TOKENIZERS_PARALLELISM"]
                os.environ["TOKENIZERS_PARALLELISM"] = "true"
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                os.environ["TOKENIZERS_PARALLELISM"] = self._before


THREADS = _Threads()
