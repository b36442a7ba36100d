"""A shortlist for a finished model: learnt from pairs of texts, measured on others.

The pairs are those that the model was trained with, or come from files. How many words a source allows on average, and
how many of the words of held-out references are among them, says what it is worth before anything is decoded.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from allyouneed.decode import SearchConfig, search
from allyouneed.errors import ConfigError, DataError, UserError
from allyouneed.evaluation.measure import task_data
from allyouneed.evaluation.settings import recipe_of
from allyouneed.folder import Bundle, load_folder
from allyouneed.shortlist.lexicon import learn_lexicon
from allyouneed.shortlist.table import ALWAYS, BEST, Shortlist, make_shortlist
from allyouneed.storage import lock, require_replaceable, sweep
from allyouneed.tasks.base import Batch, TaskData
from allyouneed.text.lines import Skips, chunks, filled, pairs
from allyouneed.text.ragged import Ragged, RaggedWriter, dtype_for
from allyouneed.text.specials import EOS, PAD

TOGETHER = 64  # sources whose words are found at once
ASKED = 100  # texts of files that the model is asked for
USELESS = 0.75  # Multi30k has 0.94 from 2,000 pairs, and 0.56 from the same the wrong way round
LONGEST = 256  # tokens of a text from a file: a longer one says little about which word translates which
PIECE = 1 << 24  # words counted at a time


@contextmanager
def opened(path: str | Path) -> Iterator[Bundle]:
    """A model that is to get a shortlist, for `learn_shortlist` and `add_shortlist`.

    Nobody else writes to its run meanwhile, what killed writers left is removed, and what cannot be is refused before
    anything is learnt.
    """
    run = _run_of(Path(path).resolve())
    with nullcontext() if run is None else lock(run):
        if run is not None:
            sweep(run)
        bundle = load_folder(path, shortlist=False)  # it gets a new one
        require_translator(bundle)
        require_replaceable(bundle.path)
        if run is None:
            folder = bundle.path.resolve()
            sweep(folder.parent, folder.name)
        yield bundle


def _run_of(folder: Path) -> Path | None:
    """The run folder that a folder is, or whose model it is."""
    for run, model in ((folder, folder / "model"), (folder.parent, folder)):
        if model.name == "model" and model.is_dir() and (run / "recipe.toml").is_file():
            return run
    return None


def learn_shortlist(
    bundle: Bundle,
    files: Sequence[str] = (),
    *,
    best: int = BEST,
    always: int = ALWAYS,
    progress: Callable[[float], None] | None = None,
) -> tuple[Shortlist, list[str]]:
    """A shortlist from [source file, target file], one TSV file, or the model's own training pairs; and what a person
    should know about it."""
    require_translator(bundle)
    size = bundle.model.head.weight_VD.shape[0]
    source, target = bundle.codec.both()
    with tempfile.TemporaryDirectory(prefix="allyouneed-") as temporary:
        if files:
            (sources, targets), notes = _encoded(bundle, files, Path(temporary))
        else:
            data = _own_pairs(bundle, Path(temporary))
            (sources, targets), notes = data.train_ids(), []
        lexicon = learn_lexicon(sources, targets, progress=progress)
        frequency = _frequency(targets, size)
        shared = source is target
        shortlist = make_shortlist(lexicon, frequency, source.size, best=best, always=always, shared=shared)
        if files:
            whose, found = "what the model says to texts of the files", of_answers(shortlist, bundle, files)
            if found.share < USELESS:
                raise ConfigError(
                    f"{' and '.join(files)}: only {found.share:.1%} of {whose} would be allowed; are they of the "
                    "model's languages, and the right way round?"
                )
        else:
            whose = "references of the validation split"
            found = coverage(shortlist, pairs_of_batches(data.held_out("valid")))
        notes.append(
            f"{whose}: {found.share:.1%} of the words are allowed; a source allows {found.words:,.0f} of "
            f"{size:,} words on average"
        )
    return shortlist, notes


def _own_pairs(bundle: Bundle, folder: Path) -> TaskData:
    try:
        return task_data(bundle, folder)
    except UserError as error:
        raise ConfigError(f"{error}; or give pairs with --source and --reference, or --data") from None


def require_translator(bundle: Bundle) -> None:
    """Refuses a model that does not say words about a source of words."""
    if not translates(bundle):
        raise ConfigError(
            f"{bundle.path}: task {recipe_of(bundle).task.type!r} does not translate one text into another; a "
            "shortlist says which words a source text allows"
        )


def require_shortlist(bundle: Bundle) -> Shortlist:
    """The shortlist of a folder; refuses one that has none."""
    if bundle.shortlist is None:
        require_translator(bundle)  # others cannot have one
        raise ConfigError(
            f"{bundle.path}: has no shortlist; `allyouneed shortlist {bundle.path}` puts one into the folder"
        )
    return bundle.shortlist


def translates(bundle: Bundle) -> bool:
    """Whether a model says words about a source of words."""
    codec = bundle.codec
    words = codec.source is not None and codec.target is not None and codec.classes is None
    return words and recipe_of(bundle).task.translates


@dataclass(frozen=True)
class Coverage:
    """What a shortlist allows."""

    share: float  # of the words of some targets
    words: float  # that a source allows, on average


def coverage(shortlist: Shortlist, held_out: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Coverage:
    """Of sources and targets, both without padding. EOS, which every source allows, does not count."""
    inside = total = allowed = rows = 0
    left = iter(held_out)
    while some := list(islice(left, TOGETHER)):
        sources, targets = zip(*some, strict=True)
        list_BL, count_B = shortlist.lists(sources)
        for words, count, target in zip(list_BL.tolist(), count_B.tolist(), targets, strict=True):
            known = set(words[:count])
            said = [word for word in target if word != EOS]
            inside, total = inside + sum(word in known for word in said), total + len(said)
        allowed, rows = allowed + int(count_B.sum()), rows + len(some)
    return Coverage(inside / max(1, total), allowed / max(1, rows))


def pairs_of_batches(batches: Iterable[Batch]) -> Iterator[tuple[list[int], list[int]]]:
    """Sources and targets, one by one."""
    for batch in batches:
        assert batch.source_BS is not None
        assert batch.output_BT is not None
        for source, target in zip(batch.source_BS.tolist(), batch.output_BT.tolist(), strict=True):
            yield [word for word in source if word != PAD], [word for word in target if word != PAD]


def of_answers(shortlist: Shortlist, bundle: Bundle, files: Sequence[str]) -> Coverage:
    """The same of what the model says, among all words, to the first texts of files: a file of another language, or
    the wrong one of two, shows here."""
    texts = [source for source, _ in islice(filled(pairs(files), Skips("")), ASKED)]
    sources = bundle.codec.encode_sources(texts)
    sources = [source[:LONGEST] for source in sources]
    found = search(bundle.model, sources, SearchConfig(beam=1))
    return coverage(shortlist, [(source, best[0].ids) for source, best in zip(sources, found, strict=True)])


def _frequency(targets: Ragged, size: int) -> np.ndarray:
    counts = np.zeros(size, dtype=np.int64)
    for begin in range(0, len(targets.values), PIECE):
        counts += np.bincount(targets.values[begin : begin + PIECE], minlength=size)
    return counts


def _encoded(bundle: Bundle, files: Sequence[str], folder: Path) -> tuple[tuple[Ragged, Ragged], list[str]]:
    """The pairs of files in the model's ids, and what was skipped."""
    skips, tokenizers = Skips(" and ".join(files)), bundle.codec.both()
    names = ["source", "target"]
    dtypes = [dtype_for(tokenizer.size) for tokenizer in tokenizers]
    with (
        RaggedWriter(folder, names[0], dtypes[0]) as sources,
        RaggedWriter(folder, names[1], dtypes[1]) as targets,
    ):
        for chunk in chunks(filled(pairs(files), skips)):
            sides = (
                one.encode_batch(list(texts)) for one, texts in zip(tokenizers, zip(*chunk, strict=True), strict=True)
            )
            fitting = [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= LONGEST]
            for _ in range(len(chunk) - len(fitting)):
                skips.skip(f"longer than {LONGEST} tokens")
            sources.extend([source for source, _ in fitting])
            targets.extend([target for _, target in fitting])
    if not skips.kept:
        raise DataError(f"{skips.where}: no pair among {skips.read:,} lines; should hold at least one")
    first, second = (Ragged(folder, name, dtype) for name, dtype in zip(names, dtypes, strict=True))
    return (first, second), [f"{skips.kept:,} pairs", *skips.notes()]
