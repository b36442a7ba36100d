"""A server process: it listens, and on SIGTERM or Ctrl-C it ends in order.

    new requests are answered with 503;  running ones finish, for at most `drain` seconds;  exit status 0

A second signal ends it at once.
"""

import asyncio
import logging
import socket
import sys
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI

from allyouneed.errors import ConfigError
from allyouneed.serve.app import create_app
from allyouneed.serve.backend import Backend
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.models import Served
from allyouneed.serve.protocol import Protocol

POLL = 0.05  # seconds
LAST_WORDS = 2  # seconds in which answers that were cut off may still be sent


class Server(uvicorn.Server):
    """uvicorn's, but a signal first lets running requests finish while others are told to go elsewhere."""

    def __init__(self, config: uvicorn.Config, backend: Backend) -> None:
        super().__init__(config)
        self.backend = backend

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the end."""
        if self.backend.draining:
            self.should_exit = self.force_exit = True
            # What is torn apart now complains, with a traceback each: nothing that whoever wants the end should read.
            logging.getLogger("uvicorn.error").disabled = True
        self.backend.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; True ends the server."""
        if self.backend.draining and not self.should_exit:
            await self._drain()
            self.should_exit = True
        return await super().on_tick(counter)

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.backend.config.drain
        while self.backend.active and loop.time() < until and not self.force_exit:
            await asyncio.sleep(POLL)
        if self.backend.active:
            await asyncio.to_thread(self.backend.close)  # whoever still waits is told so


def listen(config: ServeConfig) -> socket.socket:
    """The socket to listen on."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
        listener.listen(2048)  # whoever comes before the first answer waits
    except OSError as error:
        raise ConfigError(f"{config.host}:{config.port}: cannot listen there: {error.strerror or error}") from None
    return listener


def settings(app: FastAPI, config: ServeConfig) -> uvicorn.Config:
    """What uvicorn has to know."""
    return uvicorn.Config(
        app,
        http=partial(Protocol, arrival=config.arrival),  # type: ignore[arg-type]  # it is only called
        ws="none",  # there is none, and `Protocol` would lose sight of a connection that becomes one
        log_config=None,
        access_log=False,
        limit_concurrency=config.connections,
        timeout_graceful_shutdown=LAST_WORDS,
        server_header=False,
    )


def serve(config: ServeConfig, models: dict[str, Served]) -> None:
    """Serves until a signal comes."""
    listener = listen(config)
    app = create_app(config, models)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s: %(name)s: %(message)s")
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    names = ", ".join(f"{name} (shortlist)" if served.shortlist else name for name, served in models.items())
    print(f"serving {names} on http://{shown}:{port} (Ctrl-C ends it)", flush=True)
    Server(settings(app, config), app.state.backend).run(sockets=[listener])
