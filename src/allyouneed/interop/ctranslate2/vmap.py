"""A shortlist as CTranslate2 reads it: `vmap.txt`, which `translate_batch(use_vmap=True)` uses.

    TAB word word ..                  what every source allows
    source word TAB word word ..      what a source word allows

CTranslate2 allows every text of a batch what any of them allows, so its answers are ours only if texts come one by one.
That is how they are compared, and why `--engine ctranslate2` refuses `--shortlist`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from allyouneed.errors import ConfigError
from allyouneed.shortlist.table import SPECIALS, Shortlist

FILE = "vmap.txt"


def refuse_shortlist(wanted: bool) -> None:
    """Whoever searches with CTranslate2 cannot have our shortlists."""
    if wanted:
        raise ConfigError(
            "--engine ctranslate2 allows a text what any text of its batch allows, so neighbours would change answers; "
            "--shortlist is for --engine torch"
        )


def write_vmap(shortlist: Shortlist, source: Sequence[str], target: Sequence[str], folder: Path) -> None:
    """Writes the file; `source` and `target` are the names of ids."""
    lines = [
        f"{'' if word is None else source[word]}\t{' '.join(target[one] for one in words)}\n"
        for word, words in _rows(shortlist)
    ]
    (folder / FILE).write_text("".join(lines), encoding="utf-8")


def unwritable_name(shortlist: Shortlist, source: Sequence[str], target: Sequence[str]) -> str | None:
    """A name that cannot stand in the file: blanks and ends of lines part names there."""
    rows = list(_rows(shortlist))
    names = [source[word] for word, _ in rows if word is not None]
    names += [target[word] for word in sorted({word for _, words in rows for word in words})]
    return next((name for name in names if not name or any(part in name for part in " \t\n\r")), None)


def _rows(shortlist: Shortlist) -> Iterator[tuple[int | None, list[int]]]:
    """Each source word with what it allows, first None. CTranslate2 always allows special ids, whatever is there."""
    yield None, shortlist.always[SPECIALS:].tolist()
    for word in range(len(shortlist.ends)):
        if words := shortlist.of(word):
            yield word, words
