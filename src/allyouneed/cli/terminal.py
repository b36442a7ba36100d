"""Text from anywhere, made safe to show: a terminal obeys control characters, so they are written as escapes."""

import sys
import unicodedata

# Controls, directions and other invisible characters, surrogates of undecodable file names, separators of lines.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str, keep: str = "") -> str:
    """The text on one line (unless LF is to be kept) with everything invisible written as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in keep or unicodedata.category(char) not in _HIDDEN else _escape(char) for char in text
    )


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def shown(text: str) -> str:
    """As it is into a pipe or file; with escapes where a terminal would obey it."""
    return printable(text, keep="\n\t") if sys.stdout.isatty() else text


def one_line(text: str) -> str:
    """An answer as one line, whatever a model has put into it."""
    return shown(text.replace("\r\n", " ").replace("\n", " "))


def note(line: str) -> None:
    """One line for people, beside the output."""
    print(printable(line), file=sys.stderr, flush=True)
