"""What can be wrong in a RASP program. The classes are the families of messages of the published REPL (`repl.py`)."""

from allyouneed.errors import UserError


class RaspError(UserError):
    """A name, a type, a value, a number of arguments or a file that does not fit."""


class RaspLimitError(RaspError):
    """The program is sound, but larger than what is computed here (`limits.py`)."""


class RaspFailure(RaspError):
    """An operation on atoms that Python cannot do either: 1/0, 1 + "a", the mean of strings."""


class RaspSyntaxError(RaspError):
    """Text that is not RASP."""


class RaspUnsupported(RaspError):
    """A sentence of the grammar that means nothing, such as a call of a number."""
