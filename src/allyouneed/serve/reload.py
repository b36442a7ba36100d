"""Reload keys and models on SIGHUP, without losing a request.

    read the setup again;  load the models whose folders changed;  serve them;  stop the old ones when they are idle

Requests in progress finish on the model that they began with. A folder that fails to load keeps the model that is
served. A glossary that changed is read again without its model. Other settings need a restart.
"""

import asyncio
import gc
import logging
from collections.abc import Callable

from allyouneed.serve.backend import Backend
from allyouneed.serve.engine import Engine
from allyouneed.serve.models import Served, check_searches
from allyouneed.serve.request_record import RequestRecord
from allyouneed.serve.setup import ModelEntry, Setup

log = logging.getLogger(__name__)
POLL = 0.05  # seconds
RELOADED = {"keys", "models"}  # settings that a reload changes


class Reloader:
    """Reloads the keys and models of a backend."""

    def __init__(self, backend: Backend, setup: Setup, read: Callable[[], Setup]) -> None:
        self.backend, self._setup, self._read = backend, setup, read
        self._entries: dict[str, ModelEntry] = dict(setup.models)  # what the served models were loaded from
        self._retiring: set[asyncio.Task[None]] = set()

    async def reload(self) -> None:
        """Apply the setup as it is now. Errors are logged, one line each, and change nothing."""
        try:
            setup = await asyncio.to_thread(self._read)
        except Exception as error:  # such as a file that cannot be read
            log.error("reload: nothing was changed: %s", str(error) or repr(error))
            return
        backend, before = self.backend, self._setup
        differing = [
            name
            for name in Setup.model_fields
            if name not in RELOADED and getattr(setup, name) != getattr(before, name)
        ]
        if differing:
            log.warning("reload: changed, but applied only after a restart: %s", ", ".join(differing))
        backend.config = backend.config.model_copy(update={"keys": setup.keys})
        self._setup = before.model_copy(update={"keys": setup.keys, "models": setup.models})
        models = {name: served for name in setup.models if (served := await self._current(name)) is not None}
        new = [name for name in models if backend.models.get(name) is not models[name]]
        removed = [name for name in backend.models if name not in models]
        snapshot = set(backend.requests)
        for engine in backend.replace_models(models):
            task = asyncio.create_task(self._retire(engine, snapshot))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        changes = [f"loaded {name}" for name in new] + [f"removed {name}" for name in removed]
        log.info("reload: %d keys; models: %s", len(setup.keys), "; ".join(changes) or "unchanged")

    async def _current(self, name: str) -> Served | None:
        """Return a model as its folder is now. If that fails, log why and return the model that is served, if any."""
        served, entry = self.backend.models.get(name), self._setup.models[name]
        if served is not None and self._is_same(name, entry) and await asyncio.to_thread(lambda: served.is_current):
            return await self._with_terms(served, entry)
        try:
            found = await asyncio.to_thread(self._setup.open, name)
            check_searches({name: found}, self.backend.config)
        except Exception as error:
            outcome = "is not served" if served is None else "is served as before"
            log.error("reload: the model %s %s: %s", name, outcome, str(error) or repr(error))
            return served
        self._entries[name] = entry
        return found

    def _is_same(self, name: str, entry: ModelEntry) -> bool:
        """Return whether a model was loaded from this entry, with any glossary."""
        before = self._entries.get(name)
        return before is not None and before.model_copy(update={"glossary": entry.glossary}) == entry

    async def _with_terms(self, served: Served, entry: ModelEntry) -> Served:
        """Return a model whose folder is unchanged, with its glossary as the file is now, or was if that fails."""
        terms = served.terms
        if terms is None and entry.glossary is None:
            return served
        if terms is not None and terms.file == entry.glossary and await asyncio.to_thread(terms.is_current):
            return served
        try:
            found = await asyncio.to_thread(served.with_terms, entry.glossary)
            self._entries[served.name] = entry
            return found
        except Exception as error:
            log.error("reload: the model %s keeps its glossary: %s", served.name, str(error) or repr(error))
            return served

    async def _retire(self, engine: Engine, requests: set[RequestRecord]) -> None:
        """Stop an engine when the requests that were in progress at the reload have ended."""
        while not self.backend.requests.isdisjoint(requests):
            await asyncio.sleep(POLL)
        await asyncio.to_thread(self.backend.retire, engine)
        # Its last reference frees the model, except that a request that failed may be a cycle which refers to it. Such
        # cycles are younger than what `server.py` has frozen, so a collection that visits only the rest finds them.
        del engine
        gc.collect()
