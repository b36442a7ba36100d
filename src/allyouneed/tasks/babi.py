"""Question answering over short stories: the twenty bAbI tasks.

    source = BOS s_1 . s_2 . ... s_n . question      words in lower case; the full stop, id SEPARATOR, ends a sentence
    class  = the id of the answer, which is a word of the same vocabulary ("apple,milk" is one word)

The story of a question is every sentence above it in its file, back to the line numbered 1, without other questions.
The data also names the sentences that hold the answer (`BabiData.facts`). No model reads them; they show whether a
model attended to the right sentences. The vocabulary is that of training; an answer that only a held-out file has
counts as wrong. Validation is the last tenth of each training file; the test files are the official ones.

Paper: Weston et al. 2015, arXiv:1502.05698. Answers as classes: Sukhbaatar et al. 2015, arXiv:1503.08895, section 4.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, final

import numpy as np
from pydantic import Field, field_validator

from allyouneed.errors import DataError
from allyouneed.randomness import generator
from allyouneed.sizes import Sizes
from allyouneed.tasks.base import Batch, Score, Split, TaskConfig, TaskData
from allyouneed.tasks.batching import shuffled
from allyouneed.tasks.collate import class_batch, text_class_batch
from allyouneed.tasks.prepared import prepared, source_hashes
from allyouneed.tasks.scores import accuracy
from allyouneed.text.codec import Codec
from allyouneed.text.lines import Pair, lines, resolve
from allyouneed.text.ragged import Array, Ragged, RaggedWriter, dtype_for, padded
from allyouneed.text.specials import BOS, UNK
from allyouneed.text.tokenizer import Tokenizer, of_symbols

TASKS = 20
SEPARATOR = 4  # the id of the full stop: it sorts before letters and digits, after the four special ids
VALID = 10  # one question in ten of each training file is held out
HELD_OUT_ROWS = 128
SPLITS = ("train", "valid", "test")
WORD = re.compile(r"\w+")
ANSWER = re.compile(r"\w+(,\w+)*")

Number = Annotated[int, Field(ge=1, le=TASKS)]


@dataclass(frozen=True)
class Question:
    """A question with the story before it."""

    story: tuple[str, ...]  # sentences, oldest first: words separated by blanks
    question: str
    answer: str
    facts: tuple[int, ...]  # indices of the sentences that hold the answer

    @property
    def text(self) -> str:
        """The text that a model reads."""
        return " ".join([*(f"{sentence} ." for sentence in self.story), self.question])


class BabiConfig(TaskConfig):
    summary = "answers to questions about short stories: the bAbI tasks"
    paper = "Weston et al. 2015, arXiv:1502.05698"
    kinds = frozenset({"encoder"})

    type: Literal["babi"] = "babi"
    folder: str = "$DATA/qa/babi"  # holds en/ and en-10k/
    task: Number | list[Number] | Literal["all"] = 1  # several are learnt jointly
    size: Literal["en", "en-10k"] = "en"  # 1,000 or 10,000 training questions
    batch: Annotated[int, Field(ge=1)] = 32  # questions, at most

    @field_validator("task", mode="after")
    @classmethod
    def _some(cls, value: int | list[int] | str) -> int | list[int] | str:
        if isinstance(value, list) and (not value or len(set(value)) < len(value)):
            raise ValueError(f"task={value}: should name at least one task, and each at most once")
        return value

    def numbers(self) -> list[int]:
        """Return the numbers of the tasks to learn."""
        if isinstance(self.task, int):
            return [self.task]
        return self.task if isinstance(self.task, list) else list(range(1, TASKS + 1))

    def files(self) -> dict[str, list[str]]:
        """Return the training and the test file of each task."""
        train = [self._file(number, "train", (self.size,)) for number in self.numbers()]
        # The test questions are the same for both sizes, and some copies of the data hold them only once.
        return {"train": train, "test": [self._file(number, "test", (self.size, "en")) for number in self.numbers()]}

    def _file(self, number: int, split: str, folders: Sequence[str]) -> str:
        pattern = f"qa{number}_*_{split}.txt"
        for folder in folders:
            if found := sorted(resolve(f"{self.folder}/{folder}").glob(pattern)):
                return f"{self.folder}/{folder}/{found[0].name}"
        raise DataError(
            f"{resolve(f'{self.folder}/{folders[0]}')}: no file {pattern}; "
            "task.folder should hold the files of bAbI in en/ and en-10k/"
        )

    def as_batch(self, codec: Codec, items: Sequence[Pair]) -> Batch:
        return text_class_batch(codec, items)

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        return [accuracy(hypotheses, references)]

    def prepare(self, folder: Path, seed: int) -> "BabiData":
        files = self.files()
        names = [name for group in files.values() for name in group]
        key = {"task": self.type, "files": files, "sha256": source_hashes(names)}
        return BabiData(self, prepared(folder, key, lambda preparation: _build(files, preparation.folder)))


def read_questions(path: Path) -> list[Question]:
    """Return every question of a file in bAbI format, in order."""
    found: list[Question] = []
    story: list[str] = []
    places: dict[int, int] = {}  # line number -> index of its sentence; questions have none
    last = 0
    for number, line in enumerate(lines(path), 1):
        where = f"{path}: line {number}"
        label, _, rest = line.partition(" ")
        if not (label.isascii() and label.isdigit() and rest.strip()):
            raise DataError(f"{where}: {line[:40]!r}; should be a number, a blank and a sentence or a question")
        if int(label) == 1:
            story, places = [], {}
        elif int(label) != last + 1:
            raise DataError(f"{where}: numbered {label} after {last}; should be {last + 1}, or 1 for a new story")
        last = int(label)
        text, *columns = rest.split("\t")
        words = " ".join(WORD.findall(text.lower()))
        if not words:
            raise DataError(f"{where}: has no words")
        if columns:
            found.append(Question(tuple(story), words, *_answer(columns, places, where)))
        else:
            places[last] = len(story)
            story.append(words)
    if not found:
        raise DataError(f"{path}: no question; should hold lines with question, answer and facts separated by TABs")
    return found


def _answer(columns: Sequence[str], places: dict[int, int], where: str) -> tuple[str, tuple[int, ...]]:
    """Return the answer of a question and the indices of the sentences that hold it."""
    if len(columns) != 2:
        raise DataError(f"{where}: {len(columns) + 1} columns; should be 3, separated by TABs: question, answer, facts")
    answer = columns[0].strip().lower()
    if not ANSWER.fullmatch(answer):
        raise DataError(f"{where}: answer {answer!r}; should be a word, or several separated by commas alone")
    facts = columns[1].split()
    for fact in facts:
        if not (fact.isascii() and fact.isdigit() and int(fact) in places):
            raise DataError(f"{where}: fact {fact!r}; should be the number of an earlier sentence of the story")
    return answer, tuple(places[int(fact)] for fact in facts)


def _build(files: dict[str, list[str]], folder: Path) -> None:
    splits: dict[str, list[Question]] = {split: [] for split in SPLITS}
    for name in files["train"]:
        questions = read_questions(resolve(name))
        cut = len(questions) - len(questions) // VALID
        if cut == len(questions):
            raise DataError(f"{name}: {len(questions)} questions; should hold at least {VALID}, to hold some out")
        splits["train"] += questions[:cut]
        splits["valid"] += questions[cut:]
    for name in files["test"]:
        splits["test"] += read_questions(resolve(name))
    tokenizer = _vocabulary(splits["train"])
    names = sorted(tokenizer.vocabulary, key=tokenizer.vocabulary.__getitem__)
    Codec(source=tokenizer, classes=tuple(name.strip() for name in names)).save(folder)
    notes = []
    for split, questions in splits.items():
        unknown = _write_split(folder, split, questions, tokenizer)
        notes.append(f"{split}: {len(questions):,} questions")
        if unknown:
            notes.append(f"{split}: {unknown:,} answers do not occur in training and count as wrong")
    (folder / "notes.json").write_text(json.dumps(notes, ensure_ascii=False, indent=1), encoding="utf-8")


def _vocabulary(questions: Sequence[Question]) -> Tokenizer:
    words = {"."}
    for one in questions:
        words.update(one.text.split(), [one.answer])
    tokenizer = of_symbols(words, "words")
    assert tokenizer.vocabulary[" ."] == SEPARATOR
    return tokenizer


def _write_split(folder: Path, split: str, questions: Sequence[Question], tokenizer: Tokenizer) -> int:
    """Write a split; return how many of its answers are not in the vocabulary."""
    classes = [tokenizer.vocabulary.get(f" {one.answer}", UNK) for one in questions]
    with RaggedWriter(folder, f"{split}.source", dtype_for(tokenizer.size)) as sources:
        sources.extend(tokenizer.encode_batch([one.text for one in questions]))
    with RaggedWriter(folder, f"{split}.class", "<u4") as numbers:
        numbers.extend([number] for number in classes)
    with RaggedWriter(folder, f"{split}.facts", "<u4") as facts:
        facts.extend(one.facts for one in questions)
    for name, texts in (("text", [one.text for one in questions]), ("answer", [one.answer for one in questions])):
        with RaggedWriter(folder, f"{split}.{name}", "u1") as kept:
            kept.extend(text.encode("utf-8") for text in texts)
    return classes.count(UNK)


@final
class BabiData(TaskData):
    """Prepared questions."""

    def __init__(self, task: BabiConfig, folder: Path) -> None:
        self.task = task
        self.codec = Codec.load(folder)
        assert self.codec.source is not None
        # A class is a source id, so a model may tie its output projection to its word embeddings.
        self.sizes = Sizes(self.codec.source.size, self.codec.source.size, shared=True)
        self.notes = json.loads((folder / "notes.json").read_text(encoding="utf-8"))
        self._splits = {split: _QuestionSplit(folder, split, self.sizes) for split in SPLITS}
        self._train = self._splits["train"]
        self.epoch = -(-len(self._train.source) // task.batch)
        self._cached: tuple[tuple[int, int], Array] | None = None

    def batch(self, seed: int, index: int) -> Batch:
        epoch, number = divmod(index, self.epoch or 1)
        if self._cached is None or self._cached[0] != (seed, epoch):
            self._cached = (seed, epoch), shuffled(len(self._train.source), generator(seed, epoch))
        order = self._cached[1]
        # Batch sizes differ by at most one: in a small last batch each question would weigh more.
        bounds = [(number + more) * len(order) // (self.epoch or 1) for more in (0, 1)]
        return self._train.batch(order[slice(*bounds)])

    def held_out(self, split: Split) -> Iterator[Batch]:
        data = self._splits[split]
        order = np.argsort(data.source.lengths(), kind="stable")
        for begin in range(0, len(order), HELD_OUT_ROWS):
            yield data.batch(order[begin : begin + HELD_OUT_ROWS])

    def examples(self, split: Split) -> list[tuple[str, str]]:
        data = self._splits[split]
        return [(data.texts.text(i), data.answers.text(i)) for i in range(len(data.texts))]

    def facts(self, split: Split) -> list[tuple[int, ...]]:
        """Return for each of `examples` the indices of the sentences that hold its answer."""
        facts = self._splits[split].facts
        return [tuple(facts[i].tolist()) for i in range(len(facts))]


class _QuestionSplit:
    def __init__(self, folder: Path, split: str, sizes: Sizes) -> None:
        self.source = Ragged(folder, f"{split}.source", dtype_for(sizes.source))
        self.classes = Ragged(folder, f"{split}.class", "<u4")
        self.facts = Ragged(folder, f"{split}.facts", "<u4")
        self.texts = Ragged(folder, f"{split}.text", "u1")
        self.answers = Ragged(folder, f"{split}.answer", "u1")

    def batch(self, members: Array) -> Batch:
        rows = [self.source[i] for i in members.tolist()]
        return class_batch(padded(rows, before=(BOS,)), self.classes.values[members])
