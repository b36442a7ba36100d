"""What `train` and `translate` say about common mistakes, and compressed files, which are not one."""

import bz2
import gzip
import lzma
import random
from pathlib import Path

import pytest
from cli_commands import HEADS, SMALL, Commands, Done

WORDS = (
    "dog house tree man woman child runs sits waits the a two",
    "Hund Haus Baum Mann Frau Kind rennt sitzt der das zwei",
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, choice = tmp_path_factory.mktemp("corpus"), random.Random(1)
    for split, count in (("train", 60), ("valid", 12)):
        for language, words in zip(("en", "de"), WORDS, strict=True):
            lines = "".join(" ".join(choice.choices(words.split(), k=6)) + "\n" for _ in range(count))
            (folder / f"{split}.{language}").write_text(lines)
            (folder / f"{split}-{language}").write_text(lines)  # names without a language
    return folder


def train(run: Commands, corpus: Path, *sets: str, out: str = "out") -> Done:
    given = [
        'task.train=["train.en","train.de"]',
        'task.valid=["valid.en","valid.de"]',
        "task.tokenizer.size=300",
        HEADS,
    ]
    given += ["model.encoder_layers=1", "model.decoder_layers=1", *sets]
    flags = [flag for pair in given for flag in ("--set", pair)]
    command = ["train", "--task", "translation", "--model", "encoder-decoder", "--steps", "1", *SMALL]
    return run(*command, *flags, "--out", out, folder=corpus)


def refused(done: Done, *parts: str) -> None:
    """Assert one line on standard error that holds all parts, in order."""
    assert done.status == 2, done.err
    assert done.err.count("\n") == 1, done.err
    place = 0
    for part in parts:
        assert part in done.err[place:], done.err
        place = done.err.index(part, place)


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
def test_compressed_files_are_read(run: Commands, corpus: Path, suffix: str, pack: object) -> None:
    assert callable(pack)
    plain = train(run, corpus, out="plain")
    for name in ("train.en", "train.de", "valid.en", "valid.de"):
        (corpus / f"{name}{suffix}").write_bytes(pack((corpus / name).read_bytes()))
    sets = [f'task.{split}=["{split}.en{suffix}","{split}.de{suffix}"]' for split in ("train", "valid")]
    done = train(run, corpus, *sets, out=f"packed{suffix}")
    assert (plain.status, done.status) == (0, 0), done.err
    for name in ("tokenizer.json", "train.source.bin", "valid.target.text.bin", "codec.json"):
        prepared = [corpus / out / "data" / "prepared" / name for out in ("plain", f"packed{suffix}")]
        assert prepared[0].read_bytes() == prepared[1].read_bytes()


def test_compressed_input_that_cannot_be_read(run: Commands, corpus: Path, numbers: str) -> None:
    (corpus / "cut.en.gz").write_bytes(gzip.compress((corpus / "train.en").read_bytes())[:-9])
    refused(train(run, corpus, 'task.train=["cut.en.gz","train.de"]'), "cut.en.gz: damaged, or not gzip:")
    (corpus / "train.en.zst").write_bytes(b"\x28\xb5\x2f\xfd and more")
    done = train(run, corpus, 'task.train=["train.en.zst","train.de"]')
    refused(done, "train.en.zst: damaged, or not zstd:")
    (corpus / "train.en.zip").write_bytes(b"PK\x03\x04 and more")
    done = train(run, corpus, 'task.train=["train.en.zip","train.de"]')
    refused(done, "train.en.zip: is compressed with zip; unpack it first: unzip")
    done = run("translate", numbers, given=gzip.compress(b"forty-one\n"))
    refused(done, "standard input: is compressed with gzip; unpack it first: gzip -d")


def test_lists_of_files(run: Commands, corpus: Path) -> None:
    done = train(run, corpus, 'task.train=["train.en","train.de","train.fr"]')
    refused(done, "task.train: 3 files of plain text; give [source file, target file], or a list of such lists")
    right = """--set 'task.train=["train.en","train.de"]'"""
    refused(train(run, corpus, "task.train=[train.en, train.de]"), "setting task.train=", "need quotes", right)
    refused(train(run, corpus, "task.train=train.en,train.de"), "no such file; several files are a list", right)
    refused(
        train(run, corpus, "model.mixer={type=softmax}"), "setting model.mixer=", "is not a table of TOML", "quotes"
    )


def test_one_file_for_both_sides(run: Commands, corpus: Path) -> None:
    done = train(run, corpus, 'task.train=["train.en","./train.en"]')
    refused(done, "task.train: train.en is the source and the target; give [source file, target file]")
    done = train(run, corpus, 'task.valid=["valid.de","valid.de"]')
    refused(done, "task.valid: valid.de is the source and the target")


def test_other_languages_in_the_names(run: Commands, corpus: Path) -> None:
    for name in ("copy.en", "train.fr", "train.tgt"):
        (corpus / name).write_bytes((corpus / "train.de").read_bytes())
    done = train(run, corpus, 'task.train=["train.en","copy.en"]')
    refused(done, "task.valid: valid.en and valid.de", "end with en de, those of task.train with en en")
    done = train(run, corpus, 'task.train=["train.en","train.fr"]')
    refused(done, "task.valid: valid.en and valid.de", "those of task.train with en fr")
    assert train(run, corpus, 'task.train=["train.en","train.tgt"]', out="endings").status == 0


def test_swapped_languages(run: Commands, corpus: Path) -> None:
    done = train(run, corpus, 'task.valid=["valid.de","valid.en"]')
    refused(done, "task.valid: valid.de and valid.en", "order de en", "task.train in the order en de; swap them")
    done = train(run, corpus, 'task.valid=["valid-de","valid-en"]', out="other")
    refused(done, "task.valid: valid-de and valid-en: source and target are swapped:", "in the order of task.train")
    done = train(run, corpus, 'task.test=["valid-de","valid-en"]', out="other")
    refused(done, "task.test: valid-de and valid-en: source and target are swapped:")
    assert train(run, corpus, 'task.valid=["valid-en","valid-de"]', out="other").status == 0


def test_a_folder_with_other_files_is_not_a_run(run: Commands, corpus: Path) -> None:
    (corpus / "thesis").mkdir()
    (corpus / "thesis" / "chapter.tex").write_text("Once")
    refused(
        train(run, corpus, out="thesis"), "thesis: is not a run folder and holds chapter.tex; choose a new or an empty"
    )
    assert [path.name for path in (corpus / "thesis").iterdir()] == ["chapter.tex"]
    (corpus / "empty").mkdir()
    (corpus / "empty" / ".gitignore").write_text("*\n")
    assert train(run, corpus, out="empty").status == 0


def test_a_batch_that_fits_no_memory(run: Commands, corpus: Path) -> None:
    done = train(run, corpus, "task.batch_tokens=1000000000000")
    refused(
        done, "task.batch_tokens=1000000000000: a batch of 1,000,000,000,000 tokens takes at least", "GiB", "smaller"
    )
    assert not (corpus / "out" / "data").exists()


def test_a_text_that_is_too_long_for_a_program(run: Commands, corpus: Path) -> None:
    program = "reverse = aggregate(select(indices, length - indices - 1, ==), tokens);\n"
    (corpus / "reverse.rasp").write_text(program)
    options = ("--vocabulary", "abcd", "--length", "12")
    done = run("rasp", "compile", "reverse.rasp", "--out", "reverse", *options, folder=corpus)
    assert done.status == 0, done.err
    done = run("translate", str(corpus / "reverse"), given="ab\nabcdabcdabcdab\n")
    assert done.out == "b a\n"
    refused(done, "standard input: line 2: 14 tokens; this model was made for at most 12", "compile", "--length 14")
