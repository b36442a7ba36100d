"""Several worker processes that share one port.

The supervisor listens, but accepts nothing: its workers inherit the socket, and whichever is free accepts a connection.
It passes signals on, and starts a worker again that has ended, after a growing delay if it keeps failing. It loads no
model.

    SIGTERM, SIGINT   all workers drain, then exit status 0;  a second one stops them at once
    SIGHUP            all workers reload keys and models

uvicorn's own supervisor is not used: it restarts its workers on SIGHUP, kills those that do not answer for a few
seconds, as on a busy machine, and starts failing ones again without a delay.
"""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from dataclasses import asdict
from pathlib import Path

from allyouneed.serve.logs import logging_to_stderr
from allyouneed.serve.server import announce, listen, reload_on_hangup
from allyouneed.serve.setup import Setup, Source
from allyouneed.serve.shared_metrics import metrics_file
from allyouneed.serve.worker_process import READY

log = logging.getLogger(__name__)
COMMAND = [sys.executable, "-m", "allyouneed.serve.worker_process"]
FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0  # seconds until a worker that failed is started again
STABLE = 60.0  # seconds after which a worker counts as healthy


class Supervisor:
    """Keeps the workers of a server running."""

    def __init__(self, setup: Setup, source: Source, listener: socket.socket, folder: Path) -> None:
        self._setup, self._source, self._listener, self._folder = setup, source, listener, folder
        self._workers: dict[int, Process] = {}
        self._stopping = asyncio.Event()
        self._first_outcome = asyncio.Event()  # a worker is ready, or none will be
        self._announced = False
        self._status = 0

    async def run(self) -> int:
        """Run all workers until a signal arrives, and return the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        reload_on_hangup(lambda: self._send(signal.SIGHUP))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep(1))
            await self._first_outcome.wait()  # a mistake in the setup is then reported once
            for worker in range(2, self._setup.workers + 1):
                group.create_task(self._keep(worker))
        return self._status

    def _stop(self) -> None:
        # A service manager may send SIGTERM to the workers, too: only SIGINT stops a worker at once.
        self._send(signal.SIGINT if self._stopping.is_set() else signal.SIGTERM)
        self._stopping.set()
        self._first_outcome.set()

    def _send(self, number: signal.Signals) -> None:
        for process in self._workers.values():
            if process.returncode is None:
                process.send_signal(number)

    async def _keep(self, worker: int) -> None:
        """Run a worker, again and again, until the supervisor stops."""
        delay = FIRST_DELAY
        while not self._stopping.is_set():
            started = time.monotonic()
            status, ready = await self._run_once(worker)
            metrics_file(self._folder, worker).unlink(missing_ok=True)
            if self._stopping.is_set():
                return
            if not ready and not self._announced:  # the setup is wrong: the worker has printed why
                self._status = status if status > 0 else 1
                self._stop()
                return
            delay = FIRST_DELAY if time.monotonic() - started > STABLE else delay
            wait = 0.0 if status == 0 else delay
            log.error("worker %d ended with status %d; it starts again in %g seconds", worker, status, wait)
            delay = min(LONGEST_DELAY, delay * 2) if status else delay
            try:
                await asyncio.wait_for(self._stopping.wait(), wait)
            except TimeoutError:
                continue

    async def _run_once(self, worker: int) -> tuple[int, bool]:
        """Run a worker until it ends. Return its exit status, and whether it has accepted connections."""
        cores = int(os.environ.get("OMP_NUM_THREADS", "0")) or len(os.sched_getaffinity(0))
        threads = str(max(1, cores // self._setup.workers))
        # A worker inherits the mask: a SIGHUP waits until `reload_on_hangup`. Without a handler it would end it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
        try:
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                stdin=PIPE,
                stdout=PIPE,
                pass_fds=[self._listener.fileno()],
                env=os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads),
                start_new_session=True,  # Ctrl-C reaches the supervisor only
            )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
        self._workers[worker] = process
        if self._stopping.is_set():  # a signal arrived in between
            process.send_signal(signal.SIGTERM)
        assert process.stdin is not None
        assert process.stdout is not None
        order = {"listener": self._listener.fileno(), "worker": worker, "metrics": str(self._folder)}
        process.stdin.write(json.dumps({**order, "source": asdict(self._source)}).encode() + b"\n")
        ready = await process.stdout.readline() == READY
        if ready and not self._announced:
            self._announced = True
            self._first_outcome.set()
            announce(self._listener, [*self._setup.models], self._setup.workers)
        return await process.wait(), ready


def supervise(setup: Setup, source: Source) -> int:
    """Serve with several worker processes, and return the exit status."""
    listener = listen(setup)
    with tempfile.TemporaryDirectory(prefix="allyouneed-") as folder, logging_to_stderr(setup):
        return asyncio.run(Supervisor(setup, source, listener, Path(folder)).run())
