"""Writes a shortlist for CTranslate2: `vmap.txt`, which `translate_batch(use_vmap=True)` reads.

    TAB word word ..                  allowed for every source
    source word TAB word word ..      allowed for this source word

CTranslate2 merges the allowed words of all texts in a batch, so its results equal ours only for single texts. The
comparison uses single texts, and `--engine ctranslate2` refuses `--shortlist`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from allyouneed.errors import ConfigError
from allyouneed.shortlist.table import SPECIALS, Shortlist

FILE = "vmap.txt"


def refuse_shortlist(requested: bool) -> None:
    """Raise ConfigError if a shortlist is requested."""
    if requested:
        raise ConfigError(
            "--shortlist: --engine ctranslate2 shares one shortlist in a batch, so other texts would change a result; "
            "use --engine torch"
        )


def write_vmap(shortlist: Shortlist, source: Sequence[str], target: Sequence[str], folder: Path) -> None:
    """Write vmap.txt; `source` and `target` are the names of ids."""
    lines = [
        f"{'' if word is None else source[word]}\t{' '.join(target[one] for one in words)}\n"
        for word, words in _rows(shortlist)
    ]
    (folder / FILE).write_text("".join(lines), encoding="utf-8")


def unwritable_name(shortlist: Shortlist, source: Sequence[str], target: Sequence[str]) -> str | None:
    """Return a name that the file cannot contain, because of spaces or line ends; None if there is none."""
    rows = list(_rows(shortlist))
    names = [source[word] for word, _ in rows if word is not None]
    names += [target[word] for word in sorted({word for _, words in rows for word in words})]
    return next((name for name in names if not name or any(part in name for part in " \t\n\r")), None)


def _rows(shortlist: Shortlist) -> Iterator[tuple[int | None, list[int]]]:
    """Yield each source word with its allowed words, None first. CTranslate2 always allows special ids."""
    yield None, shortlist.always[SPECIALS:].tolist()
    for word in range(len(shortlist.ends)):
        if words := shortlist.of(word):
            yield word, words
