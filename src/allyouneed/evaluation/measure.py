"""What a finished model is worth: its scores on its own held-out data or on given files.

A model folder is all that is needed: it holds the recipe, and so the task, the seed and the search. Held-out data
is prepared again from the task; it counts only if that gives the very tokenisers that the model was trained with.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from allyouneed.config import parse
from allyouneed.decode import Scored, SearchConfig, score, translate
from allyouneed.decode.translate import check_known, class_logprobs
from allyouneed.errors import ConfigError, DataError, FolderError, UserError
from allyouneed.folder import Bundle
from allyouneed.shortlist.table import Shortlist
from allyouneed.sizes import Sizes
from allyouneed.tasks import Batch, Score, Split, TaskConfig, TaskData, Units
from allyouneed.tasks.classification import ClassificationConfig, class_batch
from allyouneed.tasks.language import LanguageConfig, text_windows
from allyouneed.tasks.pairs import PairTask, as_arrays, pair_batch
from allyouneed.tasks.rasp import RaspConfig, tag_batch
from allyouneed.tasks.scores import accuracy, exact_match
from allyouneed.text.codec import Codec
from allyouneed.text.ids import padded
from allyouneed.text.lines import Pair, Skips, blocks, filled, pairs, resolve
from allyouneed.text.specials import BOS, UNK
from allyouneed.text.tokenizer import Tokenizer
from allyouneed.training import Recipe, evaluate

LONGEST = 4096  # tokens of a text that is given to a model; memory and time grow with its square
ROWS = 32  # texts in a batch


def recipe_of(bundle: Bundle) -> Recipe:
    """The recipe that the model was trained with."""
    try:
        return parse(Recipe, bundle.recipe)
    except UserError as error:
        raise FolderError(f"{bundle.path}: config.json: holds no recipe that can be used: {error}") from None


def search_config(bundle: Bundle, asked: Mapping[str, Any]) -> SearchConfig:
    """The search of the model's recipe, with what was asked for instead."""
    usual = recipe_of(bundle).decode.model_dump()
    given = {name: value for name, value in asked.items() if value is not None}
    if "n_best" in given and "beam" not in given:
        given["beam"] = max(usual["beam"], given["n_best"])
    return parse(SearchConfig, usual | given)


def require_source(bundle: Bundle, what: str) -> None:
    """Refuses a model that reads no source."""
    if bundle.codec.source is None:
        raise ConfigError(f"{bundle.path}: a language model has no source to {what}; try `allyouneed generate`")


def require_generator(bundle: Bundle) -> None:
    """Refuses a model that says nothing."""
    if bundle.codec.target is None:
        what = "a model that answers for each token" if bundle.codec.each else "a classifier"
        raise ConfigError(f"{bundle.path}: {what} generates nothing; try `allyouneed translate`")


def require_short(tokenizer: Tokenizer | None, texts: Sequence[str], where: str, before: int = 0) -> None:
    """Refuses a text that is too long for a model; `before` texts of `where` were checked already."""
    assert tokenizer is not None
    for number, text in enumerate(texts, start=before + 1):
        long = tokenizer.surely_longer(text, LONGEST)
        # No tokeniser makes more tokens than there are bytes, so most texts need no second look.
        if long or (len(text) > LONGEST // 4 and len(tokenizer.encode(text)) > LONGEST):
            raise DataError(f"{where}: line {number}: a text of more than {LONGEST:,} tokens; cut it into pieces")


def require_known(codec: Codec, texts: Sequence[str], where: str, before: int = 0) -> None:
    """Refuses a token without an answer, if each token has one; `before` texts of `where` were checked already."""
    if codec.each:
        for number, text in enumerate(texts, start=before + 1):
            check_known(text, codec.encode_source(text), f"{where}: line {number}")


def has_unknown(codec: Codec, text: str) -> bool:
    """Whether the model reads some of a text as a mark for whatever it does not know."""
    return UNK in codec.encode_source(text)


# --- held-out data ---------------------------------------------------------------------------------------------------


def evaluate_held_out(
    bundle: Bundle,
    split: Split | None,
    search: SearchConfig,
    report: Callable[[str], None],
    shortlist: Shortlist | None = None,
) -> list[Score]:
    """All scores on a held-out split of the model's own task (None: the test split, or the validation split)."""
    with tempfile.TemporaryDirectory(prefix="allyouneed-") as temporary:
        data = own_data(bundle, Path(temporary))
        for note in data.notes:
            report(note)
        return evaluate(bundle.model, data, split or _last_split(data), search, shortlist=shortlist)


def own_data(bundle: Bundle, temporary: Path) -> TaskData:
    """The data of the model's own task, as in training: that of its run folder, or prepared again."""
    recipe, beside = recipe_of(bundle), bundle.path.parent / "data"
    data = recipe.task.prepare(beside if beside.is_dir() else temporary, recipe.seed)
    if not data.codec.means_the_same(bundle.codec):
        raise DataError(
            f"{bundle.path}: its task's data has changed since it was trained (the tokenisers differ); "
            "give --data, or --source and --reference"
        )
    data.codec = bundle.codec
    return data


def _last_split(data: TaskData) -> Split:
    try:
        next(iter(data.held_out("test")))
    except ConfigError:
        return "valid"
    return "test"


# --- files -----------------------------------------------------------------------------------------------------------


def evaluate_files(
    bundle: Bundle,
    files: Sequence[str],
    search: SearchConfig,
    report: Callable[[str], None],
    shortlist: Shortlist | None = None,
) -> list[Score]:
    """All scores on [source file, reference file] or one TSV file; for a language model on one text file."""
    task = recipe_of(bundle).task
    if isinstance(task, LanguageConfig):
        data: TaskData = _TextFile(bundle.codec, task, files)
    else:
        data = _PairFiles(bundle.codec, task, files)
    for note in data.notes:
        report(note)
    name = ",".join(Path(file).name for file in files)
    return [
        Score(one.name, one.value, one.signature.replace("split:test", f"data:{name}"), one.higher_is_better)
        for one in evaluate(bundle.model, data, "test", search, shortlist=shortlist)
    ]


class _PairFiles(TaskData):
    """Texts with what should come out, from files, in the folder's own ids."""

    def __init__(self, codec: Codec, task: TaskConfig, files: Sequence[str]) -> None:
        self.codec, self._task = codec, task
        assert codec.source is not None
        size = len(codec.classes) if codec.classes is not None else codec.target.size if codec.target else 0
        self.sizes = Sizes(codec.source.size, size)
        skips = Skips(" and ".join(files))
        own = isinstance(task, ClassificationConfig) and len(files) == 1
        rows = task.rows(files[0]) if own and isinstance(task, ClassificationConfig) else pairs(files)
        self._pairs = list(self._usable(filled(rows, skips), skips))
        self.notes = skips.notes()
        if not self._pairs:
            raise DataError(f"{skips.where}: no pair among {skips.read:,} lines; should hold at least one")

    def _usable(self, rows: Iterator[Pair], skips: Skips) -> Iterator[Pair]:
        classes = self.codec.classes
        for source, target in rows:
            require_short(self.codec.source, [source], skips.where, skips.read - 1)
            if self.codec.each:
                tag_batch(self.codec, [source], [target])  # DataError, if they do not fit each other
            elif classes is not None and target not in classes:
                known = ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "")
                raise DataError(
                    f"{skips.where}: line {skips.read}: {target!r} is no class of this model; known: {known}"
                )
            if classes is None:
                require_short(self.codec.target, [target], skips.where, skips.read - 1)
            yield source, target

    def batch(self, seed: int, index: int) -> Batch:
        raise NotImplementedError("files are for evaluation")

    def held_out(self, split: Split) -> Iterator[Batch]:
        by_length = sorted(self._pairs, key=lambda pair: len(pair[0]))
        for begin in range(0, len(by_length), ROWS):
            yield self._as_batch(by_length[begin : begin + ROWS])

    def _as_batch(self, items: list[Pair]) -> Batch:
        if isinstance(self._task, RaspConfig):
            return self._task.as_batch(self.codec, items)
        return pairs_as_batch(self.codec, items)

    def examples(self, split: Split) -> list[tuple[str, str]]:
        return self._pairs

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        if isinstance(self._task, PairTask):
            return self._task.measure(hypotheses, references)
        whole = self.codec.classes is None or self.codec.each
        return [(exact_match if whole else accuracy)(hypotheses, references)]


def pairs_as_batch(codec: Codec, items: Sequence[Pair]) -> Batch:
    """Texts with their targets or classes as a batch."""
    assert codec.source is not None
    sources, targets = [source for source, _ in items], [target for _, target in items]
    if codec.each:
        return tag_batch(codec, sources, targets)
    if codec.classes is not None:
        rows = as_arrays(codec.encode_sources(sources))
        return class_batch(padded(rows), [codec.classes.index(name) for name in targets])
    assert codec.target is not None
    source, target = codec.source.encode_batch(sources), codec.target.encode_batch(targets)
    return pair_batch(as_arrays(source), as_arrays(target), codec.framing)


class _TextFile(TaskData):
    """A running text from a file, in the folder's own ids, in the windows of the model's task."""

    def __init__(self, codec: Codec, task: LanguageConfig, files: Sequence[str]) -> None:
        if len(files) != 1:
            raise ConfigError("a language model is measured on one text file: --data FILE")
        assert codec.target is not None
        self.codec, self.notes = codec, []
        self.sizes = Sizes(codec.target.size, codec.target.size, shared=True)
        self._task = task
        ids, characters, size = [BOS], 0, 0
        for text in blocks(resolve(files[0])):
            ids += codec.target.encode(text)
            characters, size = characters + len(text), size + len(text.encode())
        if len(ids) == 1:
            raise DataError(f"{files[0]}: is empty; should hold some text")
        self._stream, self._units = np.asarray(ids), Units(len(ids) - 1, characters, size, task.reading)

    def batch(self, seed: int, index: int) -> Batch:
        raise NotImplementedError("files are for evaluation")

    def held_out(self, split: Split) -> Iterator[Batch]:
        return text_windows(self._stream, self._task)

    def examples(self, split: Split) -> list[tuple[str, str]]:
        return []

    def units(self, split: Split) -> Units:
        return self._units


# --- probabilities ---------------------------------------------------------------------------------------------------


def score_lines(bundle: Bundle, lines: Sequence[str], where: str, before: int = 0) -> list[Scored | None]:
    """Return log P of each line: source TAB target, text TAB class, or a text; None for an empty line.

    `before` lines of `where` were scored already.
    """
    language_model = bundle.codec.source is None
    rows: list[Pair | None] = []
    for number, line in enumerate(lines, start=before + 1):
        rows.append(None if not line else ("", line) if language_model else _columns(line, where, number))
    return score_rows(bundle, rows, where, before)


def score_rows(bundle: Bundle, rows: Sequence[Pair | None], where: str, before: int = 0) -> list[Scored | None]:
    """Return log P of each target (or class) given its source; None for a row that is None.

    A language model ignores the source.
    """
    codec = bundle.codec
    filled = [row for row in rows if row is not None]
    sources, targets = (["" if row is None else row[column] for row in rows] for column in (0, 1))
    if codec.source is None:
        assert codec.target is not None
        require_short(codec.target, targets, where, before)
        # A language model learns no end of text, so a text is scored as the beginning of one.
        texts = [(None, codec.target.encode(text)) for _, text in filled]
        return _spread(rows, score(bundle.model, texts, ended=False))
    require_short(codec.source, sources, where, before)
    if codec.classes is not None:
        require_known(codec, sources, where, before)
        return _spread(rows, (_score_tags if codec.each else _score_classes)(bundle, filled, where))
    require_short(codec.target, targets, where, before)
    source_ids = codec.encode_sources([source for source, _ in filled])
    target_ids = [codec.encode_target(target) for _, target in filled]
    return _spread(rows, score(bundle.model, list(zip(source_ids, target_ids, strict=True))))


def _spread(rows: Sequence[Pair | None], found: Sequence[Scored]) -> list[Scored | None]:
    left = iter(found)
    return [None if row is None else next(left) for row in rows]


def _columns(line: str, where: str, number: int) -> Pair:
    columns = line.split("\t")
    if len(columns) != 2:
        raise DataError(f"{where}: line {number}: {len(columns)} columns; should be 2, parted by a TAB: source, target")
    return columns[0], columns[1]


def _score_classes(bundle: Bundle, rows: Sequence[Pair], where: str) -> list[Scored]:
    classes = bundle.codec.classes
    assert classes is not None
    for _, name in rows:
        if name not in classes:
            raise DataError(f"{where}: {name!r} is no class of this model; known: {', '.join(classes[:10])}")
    every = SearchConfig(beam=len(classes), n_best=len(classes))
    answers = translate(bundle.model, bundle.codec, [text for text, _ in rows], every)
    found = [{answer.text: answer.logprob for answer in ranked} for ranked in answers]
    return [Scored(known[name], 1, [known[name]]) for known, (_, name) in zip(found, rows, strict=True)]


def _score_tags(bundle: Bundle, rows: Sequence[Pair], where: str) -> list[Scored]:
    """One class for each token."""
    found = [Scored(0.0, 0, [])] * len(rows)
    for chosen, logprobs in class_logprobs(bundle.model, bundle.codec, [text for text, _ in rows]):
        for i, logprob_SV in zip(chosen, logprobs, strict=True):
            class_1S = tag_batch(bundle.codec, [rows[i][0]], [rows[i][1]]).class_BS
            assert class_1S is not None
            class_S1 = class_1S[0, bundle.codec.inside(class_1S.shape[1]), None].to(logprob_SV.device)
            each = logprob_SV.gather(1, class_S1).flatten().tolist()
            found[i] = Scored(sum(each), len(each), each)
    return found
