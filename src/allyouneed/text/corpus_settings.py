"""Corpora in a recipe: how names, tables and lists of them are read, and written again.

train = ["a.en", "a.de"]                              two files whose lines correspond
train = "pairs/*.tmx"                                 one corpus; its files are read in the order of their names
train = ["pairs.tsv", ["b.en.gz", "b.de.gz"]]         several corpora
train = [{ files = "web-*.jsonl.zst", source = "en", target = "de", weight = 0.5 }, "pairs.tsv"]
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, PlainSerializer

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.text.corpora import Corpus, LabelCorpus, PairCorpus, TextCorpus, has_format, named_format
from allyouneed.text.lines import Pair
from allyouneed.words import counted

C = TypeVar("C", bound=Corpus)


def read_corpora(value: Any, kind: type[C]) -> list[C | Mapping[str, Any]]:
    """Return the corpora of a setting: names, tables, or lists of them, as values that `kind` validates."""
    if isinstance(value, kind | str | Mapping):
        value = [value]
    if not isinstance(value, list | tuple):
        raise ValueError("should be the name of a file, a table with files, or a list of these")
    names = [one for one in value if isinstance(one, str)]
    if kind is PairCorpus and len(names) == len(value) and not any(map(has_format, names)):
        if len(names) == 2:
            return [{"files": names}]
        if len(names) > 2:
            raise ValueError(
                f"{counted(len(names), 'file')} of plain text; give [source file, target file], or a list of such "
                'lists: [["a.en", "a.de"], ["b.en", "b.de"]]'
            )
    if not value:
        raise ValueError("no file is given")
    return [{"files": one} if isinstance(one, str | list | tuple) else one for one in value]


def written(corpora: Sequence[Corpus], weights: bool = True) -> list[Any]:
    """Return corpora as short as a recipe may write them."""
    if len(corpora) == 1 and corpora[0].plain() and (len(corpora[0].files) == 1 or corpora[0].is_parallel()):
        return list(corpora[0].files)
    return [_written(corpus, weights) for corpus in corpora]


def written_name(corpora: Sequence[Corpus], weights: bool = True) -> Any:
    """Return corpora as a recipe may write them: a single file by its name."""
    found = written(corpora, weights)
    return found[0] if len(found) == 1 else found


def _written(corpus: Corpus, weights: bool) -> Any:
    values = corpus.model_dump(mode="json", exclude_none=True)
    if not weights or corpus.weight == 1:
        del values["weight"]
    if values.keys() != {"files"}:
        return values
    if len(corpus.files) > 1:
        return list(corpus.files)
    # Two names of plain text would be read as one pair of files; a folder may be missing where they are read.
    return corpus.files[0] if not isinstance(corpus, PairCorpus) or named_format(corpus.files[0]) else values


def require_weights_for_training(
    train: Sequence[Corpus], valid: Sequence[Corpus] | None, test: Sequence[Corpus] | None
) -> None:
    """Raise ValueError if a weight has no effect: on held-out data, or on the only corpus."""
    for split, corpora in (("valid", valid), ("test", test)):
        if any(corpus.weight != 1 for corpus in corpora or ()):
            raise ValueError(f"{split}: weight has no effect on held-out data, which is read once; remove it")
    if len(train) == 1 and train[0].weight != 1:
        raise ValueError("train: weight has no effect on a single corpus; remove it")


def require_tags_for_training(
    train: Sequence[PairCorpus], valid: Sequence[PairCorpus] | None, test: Sequence[PairCorpus] | None
) -> None:
    """Raise ValueError if a tag is on held-out data, or if no corpus is without one."""
    for split, corpora in (("valid", valid), ("test", test)):
        if any(corpus.tag is not None for corpus in corpora or ()):
            raise ValueError(f"{split}: tag is for training; texts to translate have none; remove it")
    if all(corpus.tag is not None for corpus in train):
        raise ValueError("train: tag on all corpora; texts to translate have none, so give a corpus without a tag")


def described(corpora: Iterable[Corpus]) -> str:
    """Return the files of corpora, for messages."""
    return " and ".join(corpus.name for corpus in corpora)


def file_names(value: Any) -> list[str]:
    """Return the names in a setting of corpora."""
    if isinstance(value, Corpus):
        return list(value.files)
    if isinstance(value, Mapping):
        return file_names(value.get("files", ()))
    return [value] if isinstance(value, str) else [name for one in value for name in file_names(one)]


def sources_of(corpora: Iterable[Corpus]) -> dict[str, Path]:
    """Return every file of corpora, by the name that identifies it."""
    found: dict[str, Path] = {}
    for corpus in corpora:
        found |= corpus.sources()
    return found


def pairs(files: Any, like: Sequence[PairCorpus] = ()) -> Iterator[Pair]:
    """Return the pairs of a setting, one by one: [source file, target file], one file, or corpora."""
    corpora = parse_corpora(files, PairCorpus, like)
    if any(corpus.tag is not None for corpus in corpora):
        raise ConfigError("files: tag is for training, and these are not trained on; remove it")
    rows = chain.from_iterable(corpus.rows() for corpus in corpora)
    return ((source, target) for source, target in rows)


def parse_corpora(value: Any, kind: type[C], like: Sequence[Corpus] = ()) -> list[C]:
    """Return the corpora of a setting that is given to a function. Raise ConfigError if it is not valid.

    `like`: corpora whose fields are used if none are chosen.
    """
    try:
        found = read_corpora(value, kind)
    except ValueError as error:
        raise ConfigError(f"files: {error}") from None
    corpora = (one if isinstance(one, kind) else parse(kind, dict(one), "files") for one in found)
    return [corpus.with_fields_of(like) for corpus in corpora]


PairCorpora = Annotated[
    tuple[PairCorpus, ...], BeforeValidator(lambda value: read_corpora(value, PairCorpus)), PlainSerializer(written)
]
TextCorpora = Annotated[
    tuple[TextCorpus, ...], BeforeValidator(lambda value: read_corpora(value, TextCorpus)), PlainSerializer(written)
]
LabelCorpora = Annotated[
    tuple[LabelCorpus, ...],
    BeforeValidator(lambda value: read_corpora(value, LabelCorpus)),
    PlainSerializer(written_name),
]
