"""The application: every endpoint behind the same limits, keys and kinds of error."""

from fastapi import FastAPI

from allyouneed import __version__
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.models import Served


def create_app(config: ServeConfig, models: dict[str, Served]) -> FastAPI:
    """The API in front of some models."""
    app = FastAPI(title="allyouneed", version=__version__)
    app.state.config, app.state.models = config, models
    # app.include_router(look.router(models, config))
    # app.include_router(program.router(models, config))
    # app.include_router(watch.router(models, config))
    return app
