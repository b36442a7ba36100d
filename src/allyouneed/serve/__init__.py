"""Serving: an HTTP API in front of model folders, with continuous batching, and the page that shows models at work.

Its packages come with the extra `serve`; nothing else in allyouneed imports this folder.
"""

from allyouneed.serve.app import create_app
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.models import Served, open_models

__all__ = ["ServeConfig", "Served", "create_app", "open_models"]
