"""A shortlist for a finished model: learnt from pairs of texts, measured on others.

The pairs are those that the model was trained with, or come from files. How many words a source allows on average, and
how many of the words of held-out references are among them, says what it is worth before anything is decoded.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch

from allyouneed.errors import ConfigError, DataError
from allyouneed.folder import Bundle, load_folder
from allyouneed.lab.held_out import own_data, recipe_of
from allyouneed.storage import lock, require_replaceable, sweep
from allyouneed.tasks.base import EOS, PAD, Batch
from allyouneed.tasks.ids import Ragged, RaggedWriter, dtype_for
from allyouneed.tasks.lexicon import learn_lexicon
from allyouneed.tasks.pairs import PairData, PairTask
from allyouneed.tasks.shortlist import ALWAYS, BEST, Shortlist, make_shortlist
from allyouneed.tasks.text import Skips, chunks, filled, pairs

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
        bundle = load_folder(path)
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
            data = None
        else:
            data = own_data(bundle, Path(temporary))
            assert isinstance(data, PairData)
            (sources, targets), notes = data.train_ids(), []
        lexicon = learn_lexicon(sources, targets, progress=progress)
        frequency = _frequency(targets, size)
        shared = source is target
        shortlist = make_shortlist(lexicon, frequency, source.size, best=best, always=always, shared=shared)
        if data is not None:
            told = coverage(shortlist, list(data.held_out("valid")), size)
            notes.append(f"references of the validation split: {told}")
    return shortlist, notes


def require_translator(bundle: Bundle) -> None:
    """Refuses a model that does not say words about a source of words."""
    if not translates(bundle):
        raise ConfigError(
            f"{bundle.path}: task {recipe_of(bundle).task.type!r} does not translate one text into another; a "
            "shortlist says which words a source text allows"
        )


def translates(bundle: Bundle) -> bool:
    """Whether a model says words about a source of words."""
    codec = bundle.codec
    words = codec.source is not None and codec.target is not None and codec.classes is None
    return words and isinstance(recipe_of(bundle).task, PairTask)


def coverage(shortlist: Shortlist, batches: Sequence[Batch], size: int) -> str:
    """How much of the references of held-out data a shortlist allows, and how much that is."""
    allowed, inside, words, rows = 0, 0, 0, 0
    for batch in batches:
        assert batch.source_BS is not None
        assert batch.output_BT is not None
        list_BL, count_B = shortlist.lists([[word for word in row if word != PAD] for row in batch.source_BS.tolist()])
        allowed_BV = torch.zeros(len(list_BL), size, dtype=torch.bool).scatter_(1, list_BL, value=True)
        real_BT = (batch.output_BT != PAD) & (batch.output_BT != EOS)  # which every source allows
        inside += int((allowed_BV.gather(1, batch.output_BT) & real_BT).sum())
        words, rows = words + int(real_BT.sum()), rows + len(list_BL)
        allowed += int(count_B.sum())
    return (
        f"{inside / max(1, words):.1%} of their words are allowed; a source allows {allowed / max(1, rows):,.0f} of "
        f"{size:,} words on average"
    )


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
