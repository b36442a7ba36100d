"""Log probabilities of given texts under a finished model: `allyouneed score`."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from allyouneed.decode import Scored, SearchConfig, score, translate
from allyouneed.decode.translate import class_logprobs
from allyouneed.errors import DataError
from allyouneed.evaluation.settings import recipe_of
from allyouneed.folder import Bundle
from allyouneed.tasks.collate import tag_batch
from allyouneed.text.checks import require_known, require_short, room
from allyouneed.text.corpus_settings import file_names
from allyouneed.text.lines import Pair

ROWS = 1024  # of a file, scored together


def score_lines(bundle: Bundle, lines: Sequence[str], where: str, before: int = 0) -> list[Scored | None]:
    """Return log P of each line: source TAB target, text TAB class, or a text; None for an empty line.

    `before`: lines of `where` that precede these, for messages.
    """
    language_model = bundle.codec.source is None
    rows: list[Pair | None] = []
    for number, line in enumerate(lines, start=before + 1):
        rows.append(None if not line else ("", line) if language_model else _columns(line, where, number))
    return score_rows(bundle, rows, where, before)


def score_files(bundle: Bundle, files: Any) -> Iterator[Scored | None]:
    """Yield log P of each row of files, or of corpora as a recipe gives them; None for a row with an empty side."""
    where, rows, before = " and ".join(file_names(files)), recipe_of(bundle).task.read_rows(files), 0
    while some := list(islice(rows, ROWS)):
        full = [row if row[1].strip() and (row[0].strip() or bundle.codec.source is None) else None for row in some]
        yield from score_rows(bundle, full, where, before)
        before += len(some)


def score_rows(bundle: Bundle, rows: Sequence[Pair | None], where: str, before: int = 0) -> list[Scored | None]:
    """Return log P of each target (or class) given its source; None for a row that is None.

    A language model ignores the source.
    """
    codec, longest = bundle.codec, bundle.model.longest
    filled = [row for row in rows if row is not None]
    sources, targets = (["" if row is None else row[column] for row in rows] for column in (0, 1))
    if codec.source is None:
        assert codec.target is not None
        require_short(codec.target, targets, where, before, longest and longest + (not codec.bos))
        # A language model does not learn where a text ends, so a text is scored as the start of one.
        # Where texts do not begin with BOS, the first token is read but has no probability.
        texts = [codec.split_prompt(codec.target.encode(text)) for _, text in filled]
        pairs = [(None, ids) for _, ids in texts]
        return _spread(rows, score(bundle.model, pairs, ended=False, begins=[begin for begin, _ in texts]))
    require_short(codec.source, sources, where, before, room(codec, bundle.model.longest_source))
    if codec.classes is not None:
        require_known(codec, sources, where, before, bundle.model.longest_source)
        return _spread(rows, (_score_tags if codec.per_position else _score_classes)(bundle, filled, where))
    require_short(codec.target, targets, where, before, longest and longest - len(codec.target_start) - 1)
    source_ids = codec.encode_sources([source for source, _ in filled])
    # The tag of a language is given with the source, so that it has no probability, as in a search.
    start = () if codec.prefix else codec.target_start
    target_ids = [[*start, *codec.encode_target(target)] for _, target in filled]
    return _spread(rows, score(bundle.model, list(zip(source_ids, target_ids, strict=True)), prefix=codec.prefix))


def _spread(rows: Sequence[Pair | None], scored: Sequence[Scored]) -> list[Scored | None]:
    """Return one score for each row, None for a row that is None."""
    remaining = iter(scored)
    return [None if row is None else next(remaining) for row in rows]


def _columns(line: str, where: str, number: int) -> Pair:
    columns = line.split("\t")
    if len(columns) != 2:
        raise DataError(
            f"{where}: line {number}: {len(columns)} columns; should be 2, separated by a TAB: source, target"
        )
    return columns[0], columns[1]


def _score_classes(bundle: Bundle, rows: Sequence[Pair], where: str) -> list[Scored]:
    classes = bundle.codec.classes
    assert classes is not None
    for _, name in rows:
        if name not in classes:
            raise DataError(f"{where}: {name!r} is not a class of this model; known: {', '.join(classes[:10])}")
    all_classes = SearchConfig(beam=len(classes), n_best=len(classes))
    answers = translate(bundle.model, bundle.codec, [text for text, _ in rows], all_classes)
    found = [{answer.text: answer.logprob for answer in ranked} for ranked in answers]
    return [Scored(known[name], 1, [known[name]]) for known, (_, name) in zip(found, rows, strict=True)]


def _score_tags(bundle: Bundle, rows: Sequence[Pair], where: str) -> list[Scored]:
    """Score rows whose targets are one class for each token."""
    found = [Scored(0.0, 0, [])] * len(rows)
    for chosen, logprobs in class_logprobs(bundle.model, bundle.codec, [text for text, _ in rows]):
        for i, logprob_SV in zip(chosen, logprobs, strict=True):
            class_1S = tag_batch(bundle.codec, [rows[i]]).class_BS
            assert class_1S is not None
            class_S1 = class_1S[0, bundle.codec.text_slice(class_1S.shape[1]), None].to(logprob_SV.device)
            each = logprob_SV.gather(1, class_S1).flatten().tolist()
            found[i] = Scored(sum(each), len(each), each)
    return found
