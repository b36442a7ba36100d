"""What `translate` notes on standard error after its outputs: lines whose translation may be wrong."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from allyouneed.cli.terminal import note

if TYPE_CHECKING:
    from allyouneed.folder import Bundle
    from allyouneed.text.output_checks import Doubt

MOST_NOTED = 5  # places that a note lists


class LineNotes:
    """Collects lines by what may be wrong with them."""

    def __init__(self, bundle: "Bundle") -> None:
        from allyouneed.evaluation.settings import between_languages

        self.unknown: list[int] = []  # lines with text that is not in the vocabulary
        self._unmet: list[str] = []  # lines without a term of the glossary
        self._doubts: list[tuple[str, Doubt]] = []
        self._checked = between_languages(bundle)

    def add(self, number: int, source: str, output: str) -> None:
        """Check the output of a line."""
        from allyouneed.text.output_checks import doubts_of

        if self._checked:
            self._doubts += [(f"line {number}", doubt) for doubt in doubts_of(source, output)]

    def add_missing(self, number: int, terms: Sequence[str]) -> None:
        """Note the required terms that the output of a line does not have."""
        if terms:
            self._unmet.append(f"line {number} ({', '.join(dict.fromkeys(terms))})")

    def print(self) -> None:
        """Print a note for each kind of trouble."""
        unknown = self.unknown
        if unknown:
            several = f"{len(unknown):,} lines (first: {unknown[0]}) have"
            where = f"line {unknown[0]} has" if len(unknown) == 1 else several
            note(f"{where} text that the model did not see in training; the answer may be meaningless")
        note_doubts(self._doubts)
        if self._unmet:
            note(f"no output with all terms was found: {places(self._unmet)}; a larger --max-length may help")


def note_doubts(doubts: "Sequence[tuple[str, Doubt]]") -> None:
    """Print the places of translations that may be wrong."""
    from allyouneed.text.output_checks import EXPLAINED

    for doubt, explained in EXPLAINED.items():
        found = [where for where, one in doubts if one == doubt]
        if found:
            note(f"check the translation ({explained}): {places(found)}")


def places(found: Sequence[str]) -> str:
    """Return the first places, each once, and how many follow."""
    different = list(dict.fromkeys(found))
    rest = len(different) - MOST_NOTED
    return ", ".join(different[:MOST_NOTED]) + (f" and {rest:,} more" if rest > 0 else "")
