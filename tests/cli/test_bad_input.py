"""Bad input: one line on standard error with the place, the finding and the remedy; no traceback."""

import re
from pathlib import Path

import pytest
from cli_commands import HEADS, SMALL, Commands, Done

MOST_KIBIBYTES = 1536 * 1024


def assert_one_line(done: Done, status: int, *parts: str) -> None:
    """Assert that a command ended with a status and one line of error that contains all parts."""
    assert done.status == status, done.err
    assert "Traceback" not in done.err
    complaints = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(complaints) == 1, done.err
    assert done.err.endswith(complaints[0] + "\n")
    for part in parts:
        assert part in complaints[0]
    assert done.kibibytes < MOST_KIBIBYTES


# --- corpora ---------------------------------------------------------------------------------------------------------

GOOD = b"one two\nthree\nfour five six\n"
TRAIN = ["train", "--task", "translation", "--model", "encoder-decoder", "--steps", "1", *SMALL]
TRAIN += ["--set", 'task.train=["a","b"]', "--set", 'task.valid=["good","same"]', "--set", "task.tokenizer.size=300"]
TRAIN += ["--set", HEADS, "--set", "model.encoder_layers=1", "--set", "model.decoder_layers=1"]
CORPORA = {
    "misaligned": (GOOD, GOOD + b"seven\n", ["a has 3 lines", "b has 4"]),
    "empty": (b"", b"", ["a and b", "empty"]),
    "one side empty": (GOOD, b"", ["a has 3 lines", "b has 0"]),
    "nothing but empty lines": (b"\n\n", b"\n\n", ["none of 2 pairs", "empty source and target"]),
    "latin-1": (GOOD, b"eins zwei\nf\xfcnf\nsechs\n", ["b: line 2: byte 2 0xFC is not UTF-8"]),
    "NUL": (GOOD, b"eins\0\nzwei\ndrei\n", ["b: line 1: byte 5 is NUL"]),
    "UTF-16": (GOOD, "eins\nzwei\ndrei\n".encode("utf-16"), ["b: line 1: is UTF-16", "iconv"]),
    "old Macintosh": (GOOD, b"eins\rzwei\rdrei", ["b: line 1", "CR"]),
    "an endless line": (GOOD, b"x" * (5 << 20), ["b: line 1: longer than 4,194,304 bytes"]),
    "words of 2 MB only": (b"x" * (2 << 20), b"y" * (2 << 20), ["none of 1 pairs", "longer than max_length=256"]),
}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "good").write_bytes(GOOD)
    (tmp_path / "same").write_bytes(GOOD)
    return tmp_path


@pytest.mark.parametrize("name", CORPORA)
def test_a_corpus_is_refused(name, run: Commands, corpus: Path):
    source, target, parts = CORPORA[name]
    (corpus / "a").write_bytes(source)
    (corpus / "b").write_bytes(target)
    assert_one_line(run(*TRAIN, "--out", "out", folder=corpus), 2, *parts)


def test_an_enormous_line_is_refused_in_constant_memory(run: Commands, corpus: Path):
    (corpus / "b").write_bytes(GOOD)
    with (corpus / "a").open("wb") as file:
        file.truncate(1 << 28)  # a sparse file: only its checksum takes time
    done = run(*TRAIN, "--out", "out", folder=corpus)
    assert_one_line(done, 2, "a: line 1: longer than")


def test_missing_files_are_named(run: Commands, corpus: Path):
    assert_one_line(run(*TRAIN, "--out", "out", folder=corpus), 2, "a: no such file; state files of yours: --set task")


def test_odd_but_usable_text_is_used_and_skips_are_counted(run: Commands, corpus: Path):
    marked = b"\xef\xbb\xbfone\r\ntwo \xe2\x80\xa8 three\r\n\r\n< pad > <eos> </s>\r\n" + b"w" * (1 << 21) + b"\r\nfive"
    (corpus / "a").write_bytes(marked)
    (corpus / "b").write_bytes(b"eins\nzwei\x0cdrei\nleer\n< eos >\nw\n\n")
    done = run(*TRAIN, "--out", "out", folder=corpus)
    assert done.status == 0, done.err
    assert "train: 3 pairs" in done.err
    assert "train: 1 of 6 skipped: empty source" in done.err
    assert "train: 1 of 6 skipped: empty target" in done.err
    assert "train: 1 of 6 skipped: longer than max_length=256 tokens" in done.err


# --- recipes and options ---------------------------------------------------------------------------------------------

RECIPES = {
    "unknown key": (
        '[task]\ntype = "copy"\n[model]\ntype = "decoder"\nlayer = 3',
        ["model", "'layer'", "did you mean 'layers'?"],
    ),
    "unknown type": ('[task]\ntype = "copi"\n[model]\ntype = "decoder"', ["task", "did you mean 'copy'?"]),
    "no model": ('[task]\ntype = "copy"', ["model: is missing"]),
    "not TOML": ("[task", ["not readable as TOML"]),
    "not UTF-8": ("about = '\udcff'", ["not readable as TOML"]),
    "wrong kind": ('[task]\ntype = "listops"\n[model]\ntype = "decoder"', ["needs a model of kind encoder"]),
    "impossible size": (
        '[task]\ntype = "copy"\n[model]\ntype = "decoder"\nwidth = 30\nmixer = { type = "softmax", heads = 4 }',
        ["30", "4"],
    ),
    "circle": ('extends = "bad.toml"', ["cycle"]),
    "a way out": ('extends = "../../etc/passwd"', ["same folder"]),
    "escape sequences": ('[task]\ntype = "\\u001b[31mcopy"\n[model]\ntype = "decoder"', ["\\x1b[31mcopy"]),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_refused(name, run: Commands, tmp_path: Path):
    text, parts = RECIPES[name]
    (tmp_path / "bad.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    done = run("train", "bad.toml", folder=tmp_path)
    assert_one_line(done, 2, *parts)
    assert "\x1b" not in done.err


OPTIONS = {
    "nothing": (["train"], ["no recipe: give one"]),
    "no such recipe": (["train", "transformer-bas"], ["did you mean 'transformer-base'?"]),
    "no such file": (["train", "x.toml"], ["x.toml: no such file"]),
    "two budgets": (["train", "copy", "--steps", "1", "--minutes", "1"], ["minutes and steps"]),
    "no steps": (["train", "copy", "--steps", "0"], ["train.budget.steps", "found 0"]),
    "half a set": (["train", "copy", "--set", "model.layers"], ["should look like model.layers=3"]),
    "unknown set": (["train", "copy", "--set", "model.widht=3"], ["did you mean 'width'?"]),
    "no such device": (["train", "copy", "--device", "abacus"], ["device abacus", "cpu always works"]),
    "nothing to resume": (["train", "copy", "--resume", "must", "--out", "none"], ["holds no run"]),
    "no such command": (["tranlsate"], ["No such command 'tranlsate'", "translate'?", "(allyouneed --help)"]),
    "nothing like a command": (["bogus"], ["No such command 'bogus'", "(allyouneed --help)"]),
    "no such option of the program": (["--bogus"], ["--bogus", "(allyouneed --help)"]),
    "half a limit": (["serve", "m", "--limit", "batch"], ["--limit batch: should look like max_characters=5000"]),
    "unknown limit": (["serve", "m", "--limit", "max_text=1"], ["--limit max_text=1", "did you mean 'max_texts'?"]),
    "what is no limit": (
        ["serve", "m", "--limit", "port=1"],
        ["--limit port=1: unknown name 'port'; known: arrival, batch"],
    ),
    "no such keys": (
        ["serve", "m", "--keys", "nosuch"],
        ["--keys nosuch: not readable: No such file or directory"],
    ),
    "not an origin": (["serve", "m", "--cors", "foo"], ["cors: 'foo' is not an origin", "https://example.org"]),
    "an address": (["serve", "m", "--cors", "https://a.b/"], ["cors: 'https://a.b/' is not an origin"]),
    "no such option": (["train", "--step", "3"], ["--step"]),
    "not a number": (["train", "copy", "--steps", "many"], ["'--steps'", "valid integer"]),
    "no such list": (["list", "mixtures"], ["mixers"]),
    "not a folder": (["translate", "x\x1b]0;y"], ["x\\x1b]0;y"]),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_refused(name, run: Commands, tmp_path: Path):
    arguments, parts = OPTIONS[name]
    done = run(*arguments, folder=tmp_path)
    assert_one_line(done, 2, *parts)
    assert not done.out
    assert "\x1b" not in done.err


def test_another_recipe_does_not_overwrite_a_run(run: Commands, numbers: str):
    done = run("train", "--task", "copy", "--model", "decoder", "--out", numbers)
    assert_one_line(done, 2, "started with another recipe", "choose another run folder")


# --- model folders ---------------------------------------------------------------------------------------------------


def test_results_are_not_written_among_other_files(run: Commands, numbers: str, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("mine")
    holds = "holds index.html; choose a new or an empty folder: --out"
    assert_one_line(run("inspect", numbers, "forty-one", "--out", "site", folder=tmp_path), 2, "site", holds)
    compare = ("compare", "copy", "--vary", "model.norm=pre,post", "--steps", "1", "--out", "site")
    assert_one_line(run(*compare, folder=tmp_path), 2, "site", holds)
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["index.html"]
    assert (tmp_path / "site" / "index.html").read_text() == "mine"
    for _ in range(2):  # its files are replaced
        assert run("inspect", numbers, "forty-one", "--out", "new", folder=tmp_path).status == 0


def test_not_a_model_folder_is_refused(run: Commands, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("hello")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for command in ("translate", "generate", "score", "evaluate"):
        assert_one_line(run(command, "nowhere", folder=tmp_path), 2, "nowhere")
    assert_one_line(run("translate", "empty", folder=tmp_path), 2, "empty: not a model folder")
    (tmp_path / "preparing" / "data").mkdir(parents=True)
    (tmp_path / "preparing" / "lock").touch()
    stopped = "preparing: this run was stopped before its first checkpoint; the same `allyouneed train` resumes it"
    assert_one_line(run("translate", "preparing", folder=tmp_path), 2, stopped)
    assert_one_line(run("translate", "file", folder=tmp_path), 2, "file")
    assert_one_line(run("translate", "run", folder=tmp_path), 2, "run: a run of an earlier version, not finished")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "README.md", "manifest.json"])
def test_a_changed_byte_is_noticed(name, run: Commands, numbers: str, tmp_path: Path):
    for file in (Path(numbers) / "model").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    data = bytearray((tmp_path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / name).write_bytes(data)
    assert_one_line(run("translate", str(tmp_path), given="seven\n"), 2, str(tmp_path))


# --- requests to models ----------------------------------------------------------------------------------------------

INPUTS = {
    "latin-1": (b"seven\nf\xfcnf\n", ["standard input: line 2: byte 2 0xFC is not UTF-8"]),
    "NUL": (b"seven\0\n", ["standard input: line 1: byte 6 is NUL"]),
    "UTF-16": ("seven\n".encode("utf-16"), ["standard input: line 1: is UTF-16"]),
    "an endless line": (b"seven\n" + b"x" * (5 << 20), ["standard input: line 2: longer than 4,194,304 bytes"]),
    "a long text": (b"seven\n" + b"six " * 5000 + b"\n", ["standard input: line 2: a text of more than 4,096 tokens"]),
}


@pytest.mark.parametrize("name", INPUTS)
def test_bad_input_is_refused_after_earlier_lines(name, run: Commands, numbers: str):
    given, parts = INPUTS[name]
    done = run("translate", numbers, given=given)
    assert_one_line(done, 2, *parts)
    assert "\x1b" not in done.err


@pytest.mark.parametrize("bad", [b"f\xfcnf", b"six " * 5000], ids=["not UTF-8", "too long"])
def test_lines_before_a_bad_one_are_answered(bad: bytes, run: Commands, numbers: str):
    done = run("translate", numbers, given=b"seven\neight\n" + bad + b"\n")
    assert done.out.count("\n") == 2


def test_text_unknown_from_training_is_reported(run: Commands, numbers: str):
    done = run("translate", numbers, given="twenty\n日本\n")
    assert done.out.count("\n") == 2
    assert "line 2 has text that the model did not see" in done.err
    assert "did not see" not in run("translate", numbers, given="twenty\n").err


def test_a_word_of_2_megabytes_is_one_unknown_word(run: Commands, numbers: str):
    done = run("translate", numbers, given=b"x" * (1 << 21))
    assert done.status == 0, done.err
    assert done.kibibytes < MOST_KIBIBYTES


ASKED = {
    "no beam": (["translate", "--beam", "0"], ["beam", "found 0"]),
    "more answers than hypotheses": (["translate", "--beam", "2", "--n-best", "3"], ["n_best 3"]),
    "negative length": (["translate", "--max-length", "-1"], ["max_length"]),
    "cold": (["generate", "--temperature", "-1"], ["temperature"]),
    "two kinds of data": (["evaluate", "--split", "test", "--data", "x"], ["one of"]),
    "half a pair": (["evaluate", "--source", "x"], ["--reference"]),
    "no such data": (["evaluate", "--data", "x"], ["x: no such file"]),
    "one column": (["score"], ["standard input: line 1: 1 columns; should be 2"]),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_request_is_refused(name, run: Commands, numbers: str):
    (command, *arguments), parts = ASKED[name]
    assert_one_line(run(command, numbers, *arguments, given="seven\n"), 2, *parts)


def test_impossible_requests_are_refused(run: Commands, language: str, classifier: str):
    assert_one_line(run("translate", language, given="x\n"), 2, "try `generate`")
    assert_one_line(run("generate", classifier, given="x\n"), 2, "classifier")
    assert_one_line(run("score", classifier, given="nice 3\tmediocre\n"), 2, "'mediocre' is not a class", "bad, good")


def test_a_full_disk_is_one_line(run: Commands, numbers: str, tmp_path: Path):
    done = run("translate", numbers, given="seven\n", out="/dev/full")
    assert_one_line(done, 1, "standard output: No space left on device")


def test_a_folder_that_cannot_be_made_is_one_line(run: Commands, tmp_path: Path):
    (tmp_path / "file").write_text("")
    done = run("train", "copy", "--steps", "1", "--out", str(tmp_path / "file" / "run"))
    assert done.status in (1, 2)
    assert re.fullmatch(r"error: [^\n]+\n", done.err)
