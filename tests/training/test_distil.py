"""A student learns from its teacher's outputs, which are written once; an interrupted call resumes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from allyouneed.decode import SearchConfig, translate
from allyouneed.errors import ConfigError, StorageError
from allyouneed.folder import Bundle
from allyouneed.models.base import Head
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.sizes import Sizes
from allyouneed.storage import lock
from allyouneed.tasks.translation import TranslationConfig
from allyouneed.text import lines as text_module
from allyouneed.text.codec import Codec
from allyouneed.text.specials import EOS, UNK
from allyouneed.text.tokenizer import TokenizerConfig, train
from allyouneed.training import distil
from allyouneed.training.distil import LESSON, PART, Lesson, teach

SOURCES = [f"{one} {two}" for one in "abcdef" for two in ("x", "y z", "w w w")]
REFERENCES = [source[::-1] for source in SOURCES]


@pytest.fixture
def task(tmp_path: Path) -> TranslationConfig:
    (tmp_path / "train.en").write_text("\n".join([*SOURCES[:5], "", *SOURCES[5:]]) + "\n")
    (tmp_path / "train.de").write_text("\n".join([*REFERENCES[:5], "of no source", *REFERENCES[5:]]) + "\n")
    files = (str(tmp_path / "train.en"), str(tmp_path / "train.de"))
    return TranslationConfig(train=files, valid=files)


@pytest.fixture
def teacher(tmp_path: Path) -> Bundle:
    torch.manual_seed(5)
    tokenizer = train(SOURCES, TokenizerConfig(kind="characters"))
    config = EncoderDecoderConfig(width=16, hidden=16, encoder_layers=1, decoder_layers=1)
    model = config.build(Sizes(tokenizer.size, tokenizer.size, shared=True)).eval()
    model.head = Head(model.head.weight_VD, bias=True)
    with torch.no_grad():
        model.head.bias_V[[EOS, UNK]] = -1e4  # it always generates a word
    return Bundle(tmp_path / "teacher", model, Codec(tokenizer, tokenizer), {}, "", "0", sha256="the first")


def lesson(**settings: object) -> Lesson:
    return Lesson(search=SearchConfig(beam=3, max_length=6), **settings)


def taught_pairs(task: TranslationConfig) -> tuple[list[str], list[str]]:
    source, target = (Path(name).read_text().split("\n")[:-1] for name in task.train[0].files)
    return source, target


def outputs_of(teacher: Bundle, beam: int = 1) -> list[list[str]]:
    found = translate(teacher.model, teacher.codec, SOURCES, SearchConfig(beam=3, n_best=beam, max_length=6))
    return [[answer.text for answer in best] for best in found]


def test_the_student_reads_the_teachers_outputs(task: TranslationConfig, teacher: Bundle, tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    taught = teach(teacher, task, lesson(), tmp_path / "out", lambda *done: heard.append(done))
    assert heard[-1] == (len(SOURCES), len(SOURCES))
    assert [Path(name).name for name in taught.train[0].files] == [
        "train.en",
        "train.de",
    ]  # the suffixes name the languages
    assert taught_pairs(taught) == (SOURCES, [best[0] for best in outputs_of(teacher)])
    assert taught.valid == task.valid
    assert not (tmp_path / "out" / PART).exists()


def test_references_can_be_added(task: TranslationConfig, teacher: Bundle, tmp_path: Path) -> None:
    source, target = taught_pairs(teach(teacher, task, lesson(references=True), tmp_path / "out"))
    assert source == SOURCES * 2
    assert target == [best[0] for best in outputs_of(teacher)] + REFERENCES


def test_the_output_nearest_to_the_reference_is_kept(task: TranslationConfig, teacher: Bundle, tmp_path: Path) -> None:
    best = outputs_of(teacher, beam=3)
    wanted = [found[number % len(found)] for number, found in enumerate(best)]  # as if they were human references
    Path(task.train[0].files[1]).write_text("\n".join([*wanted[:5], "of no source", *wanted[5:]]) + "\n")
    _, target = taught_pairs(teach(teacher, task, lesson(choose="nearest"), tmp_path / "out"))
    assert target == wanted
    assert target != [found[0] for found in best]


def test_an_interrupted_call_resumes(
    task: TranslationConfig, teacher: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = taught_pairs(teach(teacher, task, lesson(), tmp_path / "undisturbed"))
    monkeypatch.setattr(text_module, "CHUNK_ROWS", 4)
    requested: list[int] = []
    answers = distil.answers

    def fails_once(teacher: Bundle, lesson: Lesson, pairs: Sequence[tuple[str, str]], progress: object) -> list[str]:
        requested.append(len(pairs))
        if len(requested) == 3:
            raise KeyboardInterrupt
        return answers(teacher, lesson, pairs)

    monkeypatch.setattr(distil, "answers", fails_once)
    with pytest.raises(KeyboardInterrupt):
        teach(teacher, task, lesson(), tmp_path / "out")
    part = tmp_path / "out" / PART
    part.write_text(part.read_text() + "half a li")  # as a crash may leave it
    assert taught_pairs(teach(teacher, task, lesson(), tmp_path / "out")) == whole
    assert sum(requested[3:]) == len(SOURCES) - 8
    calls = len(requested)
    teach(teacher, task, lesson(), tmp_path / "out")
    assert len(requested) == calls  # nothing is left to do


def test_another_lesson_is_refused(task: TranslationConfig, teacher: Bundle, tmp_path: Path) -> None:
    teach(teacher, task, lesson(), tmp_path / "out")
    with pytest.raises(ConfigError, match=f"{LESSON}: written with another teacher"):
        teach(replace(teacher, sha256="the second"), task, lesson(), tmp_path / "out")
    for other in (lesson(references=True), lesson(int8=True)):
        with pytest.raises(ConfigError, match="choose another run folder"):
            teach(teacher, task, other, tmp_path / "out")


def test_lessons_written_before_int8_existed_resume(task: TranslationConfig, teacher: Bundle, tmp_path: Path) -> None:
    teach(teacher, task, lesson(), tmp_path / "out")
    kept = json.loads((tmp_path / "out" / LESSON).read_text())["lesson"]
    assert set(kept) == {"search", "choose", "references"}


def test_two_concurrent_calls_are_refused(task: TranslationConfig, teacher: Bundle, tmp_path: Path) -> None:
    with lock(tmp_path / "out"), pytest.raises(StorageError, match="is writing to this folder"):
        teach(teacher, task, lesson(), tmp_path / "out")


def test_weights_are_refused(task: TranslationConfig, teacher: Bundle, tmp_path: Path) -> None:
    weighted = task.model_copy(update={"train": (task.train[0], task.train[0].model_copy(update={"weight": 2.0}))})
    with pytest.raises(ConfigError, match=r"task.train: weights have no effect on the texts of a teacher"):
        teach(teacher, weighted, lesson(), tmp_path / "out")


def test_a_classifier_cannot_be_a_teacher(task: TranslationConfig, teacher: Bundle, tmp_path: Path) -> None:
    codec = Codec(teacher.codec.source, None, classes=("good", "bad"))
    with pytest.raises(ConfigError, match="classifies"):
        teach(replace(teacher, codec=codec), task, lesson(), tmp_path / "out")
