"""Serve model folders over HTTP with continuous batching, together with a web page that shows how the models work.

The packages that this folder needs come with the extra `serve`. Nothing else in allyouneed imports it.
"""

from allyouneed.serve.app import create_app
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.models import Served, open_models

__all__ = ["ServeConfig", "Served", "create_app", "open_models"]
