"""A worker process of a server: `python -m allyouneed.serve.worker_process`, started by `supervisor.py`.

Standard input holds one line, the order as JSON, and stays open. When it closes, the supervisor is gone, and the worker
drains and exits. A line on standard output reports that the worker accepts connections.
"""

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from allyouneed.errors import UserError
from allyouneed.malloc import keep_freed_memory
from allyouneed.serve.server import WorkerRole, serve
from allyouneed.serve.setup import Source

READY = b"ready\n"


def main() -> int:
    """Read the order and serve."""
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_with_supervisor, daemon=True).start()
    keep_freed_memory()
    listener = socket.socket(fileno=order["listener"])
    # All workers share this flag. `dup` of a blocking socket clears it, and the event loops of the others would stop
    # in `accept` until the next connection.
    listener.setblocking(False)
    source = Source(**order["source"])
    try:
        role = WorkerRole(order["worker"], Path(order["metrics"]), _report)
        serve(source.read(), source, lambda _: listener, role)
    except UserError as error:
        print(f"error: {error}".replace("\n", " "), file=sys.stderr)
        return error.status
    return 0


def _report() -> None:
    os.write(1, READY)


def _stop_with_supervisor() -> None:
    # Read the descriptor directly: a buffered reader would hold a lock that the interpreter needs at exit.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
