"""allyouneed: is attention all you need? Try it on your own data.

`import allyouneed` stays cheap: torch is imported when something needs it, so that `allyouneed --help` is quick.
"""

from typing import TYPE_CHECKING

from allyouneed.version import __version__

if TYPE_CHECKING:
    from allyouneed.folder import Bundle

__all__ = ["__version__", "load"]


def load(folder: str) -> "Bundle":
    """A ready model from a model folder: its weights, its tokenisers and the task it was trained for."""
    from allyouneed.folder import load_folder

    return load_folder(folder)
