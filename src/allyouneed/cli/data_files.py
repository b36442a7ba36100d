"""The files that `allyouneed data` reads."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from allyouneed.cli.model_options import corpora_of
from allyouneed.errors import ConfigError

if TYPE_CHECKING:
    from allyouneed.text.corpora import Corpus


def corpora_of_files(files: list[str], rows: str, like: "Sequence[Corpus]" = ()) -> "list[Corpus]":
    """Return the corpora of arguments, or of an option. `like`: corpora whose fields are used if none are chosen."""
    from allyouneed.text.corpora import LabelCorpus, PairCorpus, TextCorpus
    from allyouneed.text.corpus_settings import parse_corpora

    values = [corpora_of(one) for one in files]
    flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
    kinds: dict[str, type[Corpus]] = {"pairs": PairCorpus, "labels": LabelCorpus, "text": TextCorpus}
    found = list(parse_corpora(flat, kinds[rows], like))
    if any(corpus.weight != 1 for corpus in found):
        raise ConfigError("weight has no effect here: each row is read as often as it stands; remove it")
    if any(getattr(corpus, "tag", None) is not None for corpus in found):
        raise ConfigError("tag has no effect here: it is added to the sources in training; remove it")
    return found
