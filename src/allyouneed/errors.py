"""The errors a user can cause. Each message says where, what was found, and what would be right.

The command line prints such an error as one line and exits with its `status`; any other exception is a bug of ours
and keeps its traceback.
"""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user gave is wrong, and the user can mend it."""

    status = 2


class ConfigError(UserError):
    """A recipe, an override or an option."""


class DataError(UserError):
    """A corpus: its bytes, its lines, its pairs."""


class FolderError(UserError):
    """A model or run folder that is not one, is incomplete, or was changed since it was written."""


class StorageError(UserError):
    """The disk refused: full, read-only, broken. What was saved before is intact."""

    status = 1


class DependencyError(UserError):
    """A library that is installed in a version outside the supported range."""


class TrainingError(UserError):
    """Training cannot go on: the loss is not a number and skipping steps did not help."""

    status = 1


def unknown_name(name: str, known: Iterable[str]) -> str:
    """The message for a name that is not in a closed table, with the nearest one suggested."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown name {name!r}{hint}; known: {', '.join(known)}"
