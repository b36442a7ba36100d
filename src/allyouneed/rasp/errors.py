"""Errors in RASP programs, one class for each kind of message in the published REPL (`repl.py`)."""

from allyouneed.errors import UserError


class RaspError(UserError):
    """A wrong name, type, value, number of arguments or file."""


class RaspLimitError(RaspError):
    """A valid program that exceeds a limit (`limits.py`)."""


class RaspFailure(RaspError):
    """An operation on atoms that fails in Python too: 1/0, 1 + "a", the mean of strings."""


class RaspSyntaxError(RaspError):
    """Text that is not RASP."""


class RaspUnsupported(RaspError):
    """A grammatical sentence without a meaning, such as a call of a number."""
