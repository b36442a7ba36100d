"""`allyouneed shortlist`, and what uses its table: translate, evaluate, verify, serve."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_commands import Commands
from num2words import num2words

from allyouneed.cli.shortlist import command
from allyouneed.errors import StorageError
from allyouneed.folder import Bundle, add_shortlist, load_folder
from allyouneed.shortlist import build
from allyouneed.shortlist.table import Shortlist
from allyouneed.storage import is_locked, lock


@pytest.fixture(scope="module")
def listed(run: Commands, numbers: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run folder with a shortlist."""
    folder = Path(shutil.copytree(numbers, tmp_path_factory.mktemp("listed") / "run"))
    done = run("shortlist", str(folder), "--best", "3", "--always", "5")
    assert done.status == 0, done.err
    use = rf"\(use it: allyouneed translate {folder} --shortlist\)"
    assert re.fullmatch(rf"{folder}/model: shortlist:3\+5:[0-9a-f]{{8}} {use}\n", done.out)
    told = r"references of the validation split: \d+\.\d% of the words are allowed; a source allows \d+ of \d+ "
    assert re.search(told, done.err)
    return folder


def test_translations_hold_only_what_their_sources_allow(run: Commands, listed: Path) -> None:
    bundle = load_folder(listed)
    assert bundle.shortlist is not None
    texts = ["twenty-one", "four", "ninety-nine"]
    for flags in (["--beam", "1"], ["--beam", "3"], ["--int8"]):
        done = run("translate", str(listed), "--shortlist", *flags, given="\n".join(texts) + "\n")
        assert done.status == 0, done.err
        answers = done.out.splitlines()
        assert len(answers) == len(texts)
        assert any(answers)
        for text, answer in zip(texts, answers, strict=True):
            source, target = bundle.codec.encode_source(text), bundle.codec.encode_target(answer)
            assert set(target) <= set(bundle.shortlist.lists([source])[0][0].tolist())


def test_a_shortlist_of_everything_changes_nothing(run: Commands, listed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(listed, tmp_path / "run"))
    given = "seventeen\nthirty-two\n"
    plain = run("translate", str(folder), "--scores", given=given).out
    bundle = load_folder(folder)
    words, sources = bundle.model.head.weight_VD.shape[0], bundle.codec.both()[0].size
    add_shortlist(bundle, Shortlist(torch.arange(words), torch.arange(0), torch.zeros(sources, dtype=torch.long)))
    assert run("translate", str(folder), "--scores", "--shortlist", given=given).out == plain


def test_scores_name_their_shortlist(run: Commands, listed: Path) -> None:
    done = run("evaluate", str(listed), "--shortlist", "--int8")
    assert done.status == 0, done.err
    lines = dict(line.split(" = ", 1) for line in done.out.splitlines())
    assert re.search(r"\|shortlist:3\+5:[0-9a-f]{8}\|int8", lines["bleu"])
    assert "shortlist" not in lines["loss"]  # the loss of given targets uses all words


def test_verify_checks_the_shortlist(run: Commands, listed: Path, tmp_path: Path) -> None:
    done = run("verify", str(listed))
    assert done.status == 0, done.out
    assert re.search(r"ok +shortlist +\S+/model/shortlist\.safetensors: [\d,]+ words of \d+ source words", done.out)
    folder = Path(shutil.copytree(listed, tmp_path / "run"))
    (folder / "model" / "shortlist.safetensors").unlink()
    done = run("verify", str(folder), "--no-scores")
    assert done.status == 2
    assert "shortlist.safetensors: is missing" in done.out
    assert f"`allyouneed shortlist {folder}` makes its shortlist again" in done.out + done.err


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_damaged_shortlist_is_made_again(run: Commands, listed: Path, tmp_path: Path, damage: str) -> None:
    folder = Path(shutil.copytree(listed, tmp_path / "run"))
    path = folder / "model" / "shortlist.safetensors"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert run("translate", str(folder), given="one\n").status == 2
    done = run("shortlist", str(folder))
    assert done.status == 0, done.err
    assert run("translate", str(folder), "--shortlist", given="one\n").status == 0


def test_from_files(run: Commands, listed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(listed / "model", tmp_path / "model"))
    english, german = ([num2words(number, lang=lang) for number in range(100)] for lang in ("en", "de"))
    lines = [f"{source}\t{target}\n" for source, target in zip(english, german, strict=True)]
    (tmp_path / "pairs.tsv").write_text("".join([*lines, "\tdrei\n"]))
    (tmp_path / "en").write_text("\n".join(english))
    (tmp_path / "de").write_text("\n".join(german))
    done = run("shortlist", str(folder), "--data", str(tmp_path / "pairs.tsv"))
    assert done.status == 0, done.err
    assert "100 pairs" in done.err
    assert "1 of 101 skipped: empty source" in done.err
    assert re.search(r"the model's answers to texts of the files: \d+\.\d% of the words are allowed", done.err)
    done = run("shortlist", str(folder), "--source", str(tmp_path / "en"), "--reference", str(tmp_path / "de"))
    assert done.status == 0, done.err


def test_swapped_files_are_refused(run: Commands, listed: Path, tmp_path: Path) -> None:
    """No word of the model's answers is a word of the source's language."""
    folder = Path(shutil.copytree(listed / "model", tmp_path / "model"))
    (tmp_path / "en").write_text("one\ntwo\nthree\n" * 3)
    (tmp_path / "fr").write_text("un\ndeux\ntrois\n" * 3)
    before = (folder / "shortlist.safetensors").read_bytes()
    done = run(
        "shortlist", str(folder), "--always", "0", "--source", str(tmp_path / "en"), "--reference", str(tmp_path / "fr")
    )
    assert done.status == 2
    assert (
        "of the model's answers to texts of the files would be allowed; are the files in the model's languages"
        in done.err
    )
    assert (folder / "shortlist.safetensors").read_bytes() == before


def test_impossible_requests(run: Commands, numbers: str, language: str, classifier: str, tmp_path: Path) -> None:
    for name in ("translate", "evaluate", "serve"):
        done = run(name, numbers, "--shortlist")
        assert done.status == 2
        assert re.fullmatch(
            r"error: \S+: has no shortlist; `allyouneed shortlist \S+` adds one to the folder\n", done.err
        )
    for arguments in (["shortlist", language], ["shortlist", classifier], ["evaluate", language, "--shortlist"]):
        done = run(*arguments)
        assert done.status == 2
        assert re.fullmatch(r"error: \S+: task '\S+' does not translate one text into another; .*\n", done.err)
    done = run("shortlist", numbers, "--source", "x")
    assert (done.status, done.err) == (2, "error: --source and --reference need each other; give both, or --data\n")
    (tmp_path / "empty.tsv").write_text("\n\n")
    done = run("shortlist", numbers, "--data", str(tmp_path / "empty.tsv"))
    assert done.status == 2
    assert "no pair among 2 lines" in done.err
    assert run("shortlist", numbers, "--best", "0").status == 2
    assert not (Path(numbers) / "model" / "shortlist.safetensors").exists()


def test_batching_would_change_the_answers_of_ctranslate2(run: Commands, listed: Path) -> None:
    pytest.importorskip("ctranslate2")
    done = run("translate", str(listed), "--engine", "ctranslate2", "--shortlist")
    assert done.status == 2
    assert "--shortlist: --engine ctranslate2 shares one shortlist in a batch" in done.err
    assert "use --engine torch" in done.err


@pytest.fixture
def unlearnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make learning fail, so that a test shows what is checked before it."""

    def learn(*_: object, **__: object) -> None:
        raise AssertionError("learnt first")

    monkeypatch.setattr(build, "learn_shortlist", learn)


@pytest.mark.usefixtures("unlearnt")
def test_a_run_that_is_being_written_to_is_left_alone(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(listed / "model")
    with lock(listed):
        for name in (str(listed), str(listed / "model"), "."):
            with pytest.raises(StorageError, match="is writing to this folder"):
                command(name)


def test_a_run_is_locked_while_its_shortlist_is_learnt(
    listed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, learn, seen = Path(shutil.copytree(listed, tmp_path / "run")), build.learn_shortlist, []

    def learn_and_look(bundle: Bundle, *rest: Any, **named: Any) -> Any:
        seen.append(is_locked(folder))
        return learn(bundle, *rest, **named)

    monkeypatch.setattr(build, "learn_shortlist", learn_and_look)
    command(str(folder))
    assert seen == [True]
    assert not is_locked(folder)


@pytest.mark.usefixtures("unlearnt")
def test_a_read_only_folder_is_refused_before_learning(
    listed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(listed / "model", tmp_path / "model"))
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(StorageError, match="is not a folder but a link or a file"):
        command(str(tmp_path / "link"))
    monkeypatch.setattr(os, "access", lambda *_: False)  # root can write everywhere
    with pytest.raises(StorageError, match="permission denied while writing"):
        command(str(folder))
    monkeypatch.undo()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "model"]


@pytest.mark.parametrize("of_run", [True, False])
def test_leftovers_of_a_killed_command_are_removed(run: Commands, listed: Path, tmp_path: Path, of_run: bool) -> None:
    folder = Path(shutil.copytree(listed, tmp_path / "run"))
    if not of_run:
        (folder / "recipe.toml").unlink()
    left, other = folder / ".tmp-model-0123456789ab", folder / ".tmp-of-somebody"
    for one in (left, other):
        one.mkdir()
        (one / "model.safetensors").write_bytes(b"weights")
    assert run("shortlist", str(folder / "model")).status == 0
    assert not left.exists()
    assert other.exists() != of_run  # only a run folder is entirely ours
