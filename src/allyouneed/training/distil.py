"""Sequence-level distillation: a student learns from a teacher's outputs instead of from the references.

    y' = argmax_y P_teacher(y | x)  by beam search;      loss = -log P_student(y' | x)
    nearest:  y' = of the teacher's n best the one most like the reference (sentence BLEU)

A teacher's outputs are more regular than human references and easier to learn, so a smaller or shallower student loses
little. They are stored as ordinary parallel text, and the student is trained by the ordinary loop.

Paper: Kim and Rush 2016, arXiv:1606.07947, sections 3.2 and 3.3.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from allyouneed.config import Config
from allyouneed.decode import Answer, SearchConfig, translate
from allyouneed.errors import ConfigError
from allyouneed.folder import Bundle
from allyouneed.storage import lock, write_atomic
from allyouneed.tasks.translation import TranslationConfig
from allyouneed.text.corpora import PairCorpus
from allyouneed.text.lines import Pair, Skips, chunks, filled

LESSON, PART = "lesson.json", "targets.part"


class Lesson(Config):
    """Everything that the teacher's texts depend on, except for the teacher and the sources."""

    search: SearchConfig
    choose: Literal["best", "nearest"] = "best"
    references: bool = False  # train on the references as well
    int8: bool = False  # the teacher was loaded in int8


def teach(
    teacher: Bundle,
    task: TranslationConfig,
    lesson: Lesson,
    folder: Path,
    progress: Callable[[int, int], None] | None = None,
) -> TranslationConfig:
    """Return the task with the teacher's outputs as training targets; validation and test sets do not change.

    The texts are written to `folder` and reused. An interrupted call resumes after the last complete chunk. `progress`
    receives the number of translated texts and the total.
    """
    if teacher.codec.classes is not None:
        raise ConfigError(f"{teacher.path}: classifies; a teacher has to generate texts")
    if any(weight != 1 for weight in task.weights()):
        raise ConfigError(
            "task.train: weights have no effect on the texts of a teacher, which are one corpus; drop them"
        )
    if any(tag is not None for tag in task.corpus_tags()):
        raise ConfigError("task.train: tags have no effect on the texts of a teacher, which are one corpus; drop them")
    files = _names(task, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder):
        taught = lesson.model_dump(mode="json", exclude=None if lesson.int8 else {"int8"})  # as in older files
        _begin(folder, {"teacher": teacher.sha256, "lesson": taught, "task": task.sources(0)})
        if not all(file.exists() for file in files):
            _write(teacher, task, lesson, folder, progress)
    return task.model_copy(update={"train": (PairCorpus(files=tuple(str(file) for file in files)),)})


def _names(task: TranslationConfig, folder: Path) -> tuple[Path, Path]:
    """Return the output files; their suffixes name the languages, like those of the originals."""
    first = task.train[0]
    ends = [Path(name).suffix for name in first.files] if first.is_parallel() else [".source", ".target"]
    return folder / f"train{ends[0]}", folder / f"train{ends[1]}"


def _begin(folder: Path, depends_on: dict[str, object]) -> None:
    """Raise ConfigError if the folder holds texts of other settings."""
    text, file = json.dumps(depends_on, indent=1, ensure_ascii=False) + "\n", folder / LESSON
    if file.exists() and file.read_text(encoding="utf-8") != text:
        what = "another teacher, another search, another setting of int8, or other data"
        raise ConfigError(f"{file}: written with {what}; choose another run folder")
    write_atomic(file, text.encode())


def _write(
    teacher: Bundle, task: TranslationConfig, lesson: Lesson, folder: Path, progress: Callable[[int, int], None] | None
) -> None:
    part, files = folder / PART, _names(task, folder)
    done, count = _whole_lines(part), sum(1 for _ in _rows(task))
    translated = done

    def more(some: int) -> None:
        nonlocal translated
        translated += some
        if progress is not None:
            progress(translated, count)

    with part.open("a", encoding="utf-8", newline="\n") as out:
        for chunk in chunks(_rows(task, done)):
            outputs = answers(teacher, lesson, chunk, more)
            out.write("".join(f"{text}\n" for text in outputs))
            out.flush()
            os.fsync(out.fileno())
    taught = part.read_text(encoding="utf-8").split("\n")[:-1]
    pairs = [(source, text) for (source, _), text in zip(_rows(task), taught, strict=True) if text.strip()]
    if lesson.references:
        pairs += _rows(task)
    if not pairs:
        raise ConfigError(f"{teacher.path}: has an empty output for every source of {task.describe('train')}")
    for file, side in zip(files, (0, 1), strict=True):
        write_atomic(file, "".join(f"{pair[side]}\n" for pair in pairs).encode())
    part.unlink()


def _rows(task: TranslationConfig, begin: int = 0) -> Iterator[Pair]:
    rows = task.rows("train", 0)
    assert rows is not None
    for number, pair in enumerate(filled(rows, Skips("train"))):
        if number >= begin:
            yield pair


def _whole_lines(part: Path) -> int:
    """Return the number of complete lines; truncate an incomplete last one."""
    if not part.exists():
        return 0
    raw = part.read_bytes()
    os.truncate(part, raw.rfind(b"\n") + 1)
    return raw.count(b"\n")


def answers(
    teacher: Bundle, lesson: Lesson, pairs: Sequence[Pair], progress: Callable[[int], None] | None = None
) -> list[str]:
    """Return the teacher's output for each source, on one line each."""
    n_best = lesson.search.beam if lesson.choose == "nearest" else 1
    search = lesson.search.model_copy(update={"n_best": n_best})
    found = translate(teacher.model, teacher.codec, [source for source, _ in pairs], search, progress)
    return [_chosen(best, reference) for best, (_, reference) in zip(found, pairs, strict=True)]


def _chosen(best: Sequence[Answer], reference: str) -> str:
    texts = [" ".join(answer.text.split("\n")) for answer in best]
    if len(texts) == 1:
        return texts[0]
    from sacrebleu import sentence_bleu

    return max(texts, key=lambda text: sentence_bleu(text, [reference]).score)  # of ties, the more probable
