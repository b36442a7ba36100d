"""The errors a user can cause. Each message gives the place, the finding and the remedy.

The command line prints such an error as one line and exits with its `status`. Any other exception is a bug and keeps
its traceback.
"""

import difflib
from collections.abc import Iterable

LONGEST_NAME = 100  # characters of an unknown name that a message quotes


class UserError(Exception):
    """An error that the user can correct."""

    status = 2


class ConfigError(UserError):
    """An invalid recipe, override or option."""


class DataError(UserError):
    """An invalid corpus: its bytes, its lines or its pairs."""


class MissingFileError(DataError):
    """A file of a corpus that does not exist."""


class FolderError(UserError):
    """A folder that is not a model or run folder, is incomplete, or was changed since it was written."""


class StorageError(UserError):
    """The disk is full, read-only or broken. What was saved before is intact."""

    status = 1


class DependencyError(UserError):
    """A library that is installed in a version outside the supported range."""


class TrainingError(UserError):
    """Training cannot continue: the loss is NaN, and skipping steps did not help."""

    status = 1


def unknown_name(name: str, known: Iterable[str]) -> str:
    """Return the message for a name that is not in a closed table, with the nearest known name."""
    known, name = sorted(known), name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown name {name!r}{hint}; known: {', '.join(known)}"
