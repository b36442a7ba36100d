"""The server process: it listens, reloads on SIGHUP, and shuts down gracefully on SIGTERM or Ctrl-C.

    new requests get a 503;  running ones finish within `drain` seconds;  exit status 0

A second signal stops it at once.
"""

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import termios
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from allyouneed.errors import ConfigError
from allyouneed.serve.app import create_app
from allyouneed.serve.backend import Backend
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.connections import Connections, raise_file_limit
from allyouneed.serve.logs import logging_to_stderr
from allyouneed.serve.protocol import Protocol
from allyouneed.serve.reload import Reloader
from allyouneed.serve.setup import Setup, Source

log = logging.getLogger(__name__)
POLL = 0.05  # seconds
SEND_BUFFER = 1 << 18  # bytes of a response in the kernel; by default it grows to megabytes that nothing counts
# Connections that one iteration of the loop accepts. libuv accepts one for each file descriptor of a listener. With
# a single one, connections would wait in the kernel for as many iterations as there are connections before them.
ACCEPTS = 16
SHUTDOWN_TIMEOUT = 2  # seconds to send the responses of requests that were aborted
TICKS_PER_WRITE = 10  # a second


@dataclass(frozen=True)
class WorkerRole:
    """What a server does as one of several workers."""

    number: int  # from 1
    metrics: Path  # the folder where all workers write their metrics
    report_ready: Callable[[], None]  # called when it accepts connections


class Server(uvicorn.Server):
    """uvicorn's server, except that the first signal drains it: running requests finish, new ones are refused.

    `hangup` is set by SIGHUP. As a worker, it stops accepting connections when it drains: other workers accept them.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        backend: Backend,
        reloader: Reloader | None = None,
        hangup: threading.Event | None = None,
        role: WorkerRole | None = None,
    ) -> None:
        super().__init__(config)
        self._role = role
        self._shared = None if role is None else backend.share_metrics(role.metrics, role.number)
        self.backend, self._reloader = backend, reloader
        self._hangup = hangup or threading.Event()
        self._reloading: asyncio.Task[None] | None = None
        self._closing: threading.Thread | None = None  # stops the backend

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start draining on the first signal, and exit at once on the second; a worker on SIGINT."""
        if self.backend.draining if self._role is None else sig == signal.SIGINT:
            self.should_exit = self.force_exit = True
            # Every aborted request would log a traceback, which is noise after a forced exit.
            logging.getLogger("uvicorn.error").disabled = True
        self.backend.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second. Return True to stop the server."""
        if self.backend.draining and not self.should_exit:
            await self._drain()
            self.should_exit = True
        elif self._reloader is not None and self._hangup.is_set() and not self._is_reloading:
            self._hangup.clear()
            self._reloading = asyncio.create_task(self._reloader.reload())
        if self._shared is not None and counter % TICKS_PER_WRITE == 0:
            try:
                await asyncio.to_thread(self._shared.write)
            except OSError as error:  # such as a full disk: serving is worth more than metrics
                log.error("the metrics of this worker were not written: %s", error)
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        await super().startup(sockets)
        if self._role is not None and self.started:
            self._role.report_ready()

    @property
    def _is_reloading(self) -> bool:
        return self._reloading is not None and not self._reloading.done()

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.backend.config.drain
        if self._role is not None:
            for server in self.servers:
                server.close()
        while self.backend.active and loop.time() < until and not self.force_exit:
            await asyncio.sleep(POLL)
        if self.backend.active:
            self.backend.refuse_waiting()
            self._closing = threading.Thread(target=self.backend.close, daemon=True)
            self._closing.start()  # refuses the requests in progress, and waits for the computations
            while self._closing.is_alive() and not self.force_exit:
                await asyncio.sleep(POLL)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all connections. After a second signal, end the process without waiting for computations."""
        await super().shutdown(sockets)
        if self._closing is not None and self._closing.is_alive():
            os._exit(0)


def listen(config: ServeConfig) -> socket.socket:
    """Return the listening socket."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # inherited by its connections
        listener.bind((config.host, config.port))
        listener.listen(2048)  # connections made before the server is ready wait in the backlog
    except OSError as error:
        raise ConfigError(f"{config.host}:{config.port}: cannot listen there: {error.strerror or error}") from None
    return listener


def uvicorn_config(app: FastAPI, config: ServeConfig) -> uvicorn.Config:
    """Return uvicorn's settings."""
    return uvicorn.Config(
        app,
        http=partial(  # type: ignore[arg-type]  # uvicorn only calls it
            Protocol,
            arrival=config.arrival,
            open_connections=Connections(config, app.state.backend.metrics.connections),
        ),
        ws="none",  # no endpoint needs websockets, and `Protocol` could not watch an upgraded connection
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT,
        server_header=False,
        root_path=config.root_path,
        proxy_headers=bool(config.trust_proxy),
        forwarded_allow_ips=list(config.trust_proxy),
    )


def serve(
    setup: Setup,
    source: Source,
    open_listener: Callable[[ServeConfig], socket.socket] = listen,
    role: WorkerRole | None = None,
) -> None:
    """Serve models in this process until a signal arrives. SIGHUP reads the setup from its source again."""
    hangup = threading.Event()  # also if SIGHUP arrives before the server is ready
    reload_on_hangup(hangup.set)
    models = {name: setup.open(name) for name in setup.models}
    raise_file_limit(setup.connections)
    listener = open_listener(setup)
    if role is None:
        announce(listener, [f"{name} (shortlist)" if one.shortlist else name for name, one in models.items()])
    app = create_app(setup, models)
    reloader = Reloader(app.state.backend, setup, source.read)
    with logging_to_stderr(setup):
        gc.collect()
        gc.freeze()  # a collection that visits every object of all models would stop the event loop for 100 ms
        listeners = [listener, *(listener.dup() for _ in range(ACCEPTS - 1))]
        Server(uvicorn_config(app, setup), app.state.backend, reloader, hangup, role).run(sockets=listeners)


def reload_on_hangup(request_reload: Callable[[], None]) -> None:
    """Request a reload on SIGHUP. The SIGHUP of a terminal that was closed ends the server instead.

    The signal is blocked until then: one that has arrived during the start is handled now.
    """

    def handle(*_: object) -> None:
        if _terminal_is_closed():
            signal.raise_signal(signal.SIGTERM)
        else:
            request_reload()

    signal.signal(signal.SIGHUP, handle)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])


def _terminal_is_closed() -> bool:
    """Return True if standard input was a terminal that no longer exists."""
    try:
        termios.tcgetattr(0)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)  # without a terminal it is ENOTTY
    return False


def announce(listener: socket.socket, models: Sequence[str], workers: int = 1) -> None:
    """Print what is served where."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    by = f", {workers} workers" if workers > 1 else ""
    print(f"serving {', '.join(models)} on http://{shown}:{port} (Ctrl-C stops it{by})", flush=True)
