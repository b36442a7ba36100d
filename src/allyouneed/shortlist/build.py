"""A shortlist for a finished model: learnt from pairs of texts, measured on others.

The pairs are the model's own training pairs, or come from files. Two numbers show its value before anything is decoded:
how many words a source allows on average, and how many words of held-out references are among them (coverage.py).
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from allyouneed.errors import ConfigError, DataError, FolderError, UserError
from allyouneed.evaluation.measure import task_data
from allyouneed.evaluation.settings import recipe_of
from allyouneed.folder import Bundle, load_folder
from allyouneed.shortlist.coverage import answer_coverage, coverage, pairs_of_batches
from allyouneed.shortlist.lexicon import learn_lexicon
from allyouneed.shortlist.table import ALWAYS, BEST, Shortlist, make_shortlist
from allyouneed.storage import lock, require_replaceable, sweep
from allyouneed.tasks.base import TaskData
from allyouneed.text.corpus_settings import file_names
from allyouneed.text.lines import Skips, chunks, filled
from allyouneed.text.ragged import Ragged, RaggedWriter, dtype_for

LEAST_COVERAGE = 0.75  # Multi30k has 0.94 from 2,000 pairs, and 0.56 from the same pairs with sides swapped
LONGEST = 256  # tokens of a text from a file: longer pairs are weak evidence of word translations
CHUNK = 1 << 24  # words counted together


@contextmanager
def open_for_shortlist(path: str | Path) -> Iterator[Bundle]:
    """Open a model folder for `learn_shortlist` and `add_shortlist`, with its run folder locked.

    Leftovers of killed writers are removed. A folder that cannot be replaced is refused before anything is learnt.
    """
    run = _run_of(Path(path).resolve())
    with nullcontext() if run is None else lock(run):
        if run is not None:
            sweep(run)
        bundle = load_folder(path, shortlist=False)  # it will be replaced
        require_translator(bundle)
        if bundle.step is not None:
            raise FolderError(f"{path}: the run is not finished; a shortlist is added to its model when it is")
        require_replaceable(bundle.path)
        if run is None:
            folder = bundle.path.resolve()
            sweep(folder.parent, folder.name)
        yield bundle


def _run_of(folder: Path) -> Path | None:
    """Return the run folder: the folder itself or, for a model folder inside a run, that run."""
    for run, model in ((folder, folder / "model"), (folder.parent, folder)):
        if model.name == "model" and model.is_dir() and (run / "recipe.toml").is_file():
            return run
    return None


def learn_shortlist(
    bundle: Bundle,
    files: Any = (),
    *,
    best: int = BEST,
    always: int = ALWAYS,
    progress: Callable[[float], None] | None = None,
) -> tuple[Shortlist, list[str]]:
    """Learn a shortlist from [source file, target file], one file, corpora, or the model's own training pairs.

    Return it with notes for the user.
    """
    require_translator(bundle)
    size = bundle.model.head.size
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
            whose, found = (
                "the model's answers to texts of the files",
                answer_coverage(shortlist, bundle, recipe_of(bundle).task.read_pairs(files), LONGEST),
            )
            if found.share < LEAST_COVERAGE:
                where = " and ".join(file_names(files))
                raise ConfigError(
                    f"{where}: only {found.share:.1%} of {whose} would be allowed; are the files in the "
                    "model's languages, source first?"
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
    """Raise ConfigError if the model does not translate text."""
    if not translates(bundle):
        raise ConfigError(
            f"{bundle.path}: task {recipe_of(bundle).task.type!r} does not translate one text into another; a "
            "shortlist holds the words that a source text allows"
        )


def require_shortlist(bundle: Bundle) -> Shortlist:
    """Return the shortlist of a folder. Raise ConfigError if it has none."""
    if bundle.shortlist is None:
        require_translator(bundle)  # other models cannot have one
        raise ConfigError(
            f"{bundle.path}: has no shortlist; `allyouneed shortlist {bundle.path}` adds one to the folder"
        )
    return bundle.shortlist


def translates(bundle: Bundle) -> bool:
    """Return whether a model translates text."""
    codec = bundle.codec
    words = codec.source is not None and codec.target is not None and codec.classes is None
    return words and recipe_of(bundle).task.translates


def _frequency(targets: Ragged, size: int) -> np.ndarray:
    counts = np.zeros(size, dtype=np.int64)
    for begin in range(0, len(targets.values), CHUNK):
        counts += np.bincount(targets.values[begin : begin + CHUNK], minlength=size)
    return counts


def _encoded(bundle: Bundle, files: Any, folder: Path) -> tuple[tuple[Ragged, Ragged], list[str]]:
    """Return the pairs of files as ids of the model, and notes on skipped pairs."""
    skips, tokenizers = Skips(" and ".join(file_names(files))), bundle.codec.both()
    names = ["source", "target"]
    dtypes = [dtype_for(tokenizer.size) for tokenizer in tokenizers]
    with (
        RaggedWriter(folder, names[0], dtypes[0]) as sources,
        RaggedWriter(folder, names[1], dtypes[1]) as targets,
    ):
        for chunk in chunks(filled(recipe_of(bundle).task.read_pairs(files), skips)):
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
