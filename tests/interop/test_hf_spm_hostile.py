"""Damaged and forged SentencePiece models and their vocabularies are refused in one line, in bounded time."""

import json
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import spm_folders as folders

from allyouneed.errors import FolderError
from allyouneed.interop.hf.load import read_folder
from allyouneed.text.spm_file import _field, parse_spm
from allyouneed.text.tokenizer import Tokenizer

pytestmark = [
    pytest.mark.no_shapes,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, _ = folders.opus(tmp_path_factory.mktemp("intact") / "opus")
    return folder


@pytest.fixture
def folder(intact: Path, tmp_path: Path) -> Path:
    shutil.copytree(intact, tmp_path / "folder")
    return tmp_path / "folder"


def rewritten(change: Callable[[bytes], bytes], name: str = "source.spm") -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes())) and None


def renumbered(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        tree = json.loads((folder / "vocab.json").read_text())
        change(tree)
        (folder / "vocab.json").write_text(json.dumps(tree))

    return write


def piece(name: bytes, score: float = -1.0, kind: int = 1) -> bytes:
    return _field(1, _field(1, name) + _field(2, score) + _field(3, kind))


def forms(trie: bytes, texts: bytes = b"a\0") -> bytes:
    """Return settings with a table of normal forms."""
    return _field(3, _field(2, len(trie).to_bytes(4, "little") + trie + texts))


def units(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in [*values, *[0] * (256 - len(values))])


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (rewritten(lambda data: b""), r"source.spm: not a SentencePiece model: 0 unknown pieces; should have 1"),
    "truncated": (rewritten(lambda data: data[: len(data) // 2]), r"source.spm: not a SentencePiece model: truncated"),
    "truncated target": (
        rewritten(lambda data: data[:-9], "target.spm"),
        r"target.spm: not a SentencePiece model: truncated",
    ),
    "text": (rewritten(lambda data: b"hello " * 99), r"source.spm: not a SentencePiece model: "),
    "long number": (rewritten(lambda data: b"\xff" * 99), r"not a SentencePiece model: a number of more than 64 bits"),
    "long field": (rewritten(lambda data: b"\x0a\xff\xff\xff\xff\x7f"), r"not a SentencePiece model: truncated"),
    "two unknown": (rewritten(lambda data: data + piece(b"x?", 0.0, 2)), r"2 unknown pieces; should have 1"),
    "same piece": (rewritten(lambda data: data + piece(b"<unk>")), r"two pieces are the same"),
    "no name": (rewritten(lambda data: data + piece(b"")), r"piece '': should have 1 to 1000 bytes"),
    "long piece": (rewritten(lambda data: data + piece(b"x" * 2000)), r"should have 1 to 1000 bytes"),
    "no text": (rewritten(lambda data: data + piece(b"\xff\xfe")), r"not a SentencePiece model: 'utf-8' codec"),
    "no score": (rewritten(lambda data: data + piece(b"xyz", float("nan"))), r"piece 'xyz': score nan, type 1"),
    "no type": (rewritten(lambda data: data + piece(b"xyz", kind=9)), r"piece 'xyz': score -1.0, type 9"),
    "no byte": (rewritten(lambda data: data + piece(b"<0xzz>", kind=6)), r"piece '<0xzz>': score -1.0, type 6"),
    "other kind": (rewritten(lambda data: data + _field(2, _field(3, 7))), r"model type 7; should be one of unigram"),
    "short trie": (rewritten(lambda data: data + forms(b"abcd")), r"damaged: the size of the trie"),
    "trie outside": (rewritten(lambda data: data + forms(units(0x7FFFFFFF))), r"the trie leaves its array"),
    "child outside": (rewritten(lambda data: data + forms(units(0, 0x7FFFFE01))), r"the trie leaves its array"),
    "text outside": (
        rewritten(lambda data: data + forms(units(0, 1 << 8 | 1 | 3 << 10, 0x80000009))),
        r"a text outside of the table",
    ),
    "long form": (rewritten(lambda data: data + forms(units(0), b"x" * 99 + b"\0")), r"texts should have at most 64"),
    "no numbers": (lambda folder: (folder / "vocab.json").unlink(), r"vocab.json: not readable"),
    "no target": (lambda folder: (folder / "target.spm").unlink(), r"target.spm: not readable"),
    "list": (lambda folder: (folder / "vocab.json").write_text("[]") and None, r"vocab.json: should be an object"),
    "no id": (renumbered(lambda tree: tree.update(a="b")), r"vocab.json: should map pieces to ids"),
    "same id": (renumbered(lambda tree: tree.update(a_new_piece=0)), r"vocab.json: two pieces have the same id"),
    "far id": (renumbered(lambda tree: tree.update(a_new_piece=10**9)), r"vocab.json: should map pieces to ids"),
    "beyond": (renumbered(lambda tree: tree.update(a_new_piece=10**4)), r"id 10000, but the model has"),
    "no unknown": (renumbered(lambda tree: tree.pop("<unk>")), r"vocab.json: has no '<unk>', which source.spm gives"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_refused_in_one_line(folder: Path, name: str) -> None:
    change, message = HOSTILE[name]
    change(folder)
    with pytest.raises(FolderError, match=message) as refusal:
        read_folder(folder)
    assert "\n" not in str(refusal.value)


def test_a_large_file_is_not_read(folder: Path) -> None:
    with (folder / "source.spm").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FolderError, match=r"source.spm: more than 33,554,432 bytes"):
        read_folder(folder)


def test_random_damage_never_crashes(intact: Path, tmp_path: Path) -> None:
    """Each damaged model is refused, or splits texts like any other: in a child process, with little memory."""
    data, dice = (intact / "source.spm").read_bytes(), random.Random(7)
    files = []
    for number in range(60):
        made = bytearray(data[: dice.randrange(len(data))] if number % 3 == 0 else data)
        for _ in range(dice.randint(1, 8)):
            made[dice.randrange(len(made)) if number % 2 else dice.randrange(min(len(made), 4000))] = dice.randrange(
                256
            )
        files.append(tmp_path / f"{number}.spm")
        files[-1].write_bytes(bytes(made))
    program = f"""
import sys
from pathlib import Path
from allyouneed.errors import FolderError
from allyouneed.text.sentencepieces import SentencePieces
from allyouneed.text.spm_file import parse_spm
read = 0
for path in sorted(Path({str(tmp_path)!r}).glob("*.spm")):
    try:
        model = parse_spm(path.read_bytes(), path)
        found = SentencePieces(model, model.pieces, [3] * len(model.pieces), path)
    except FolderError as error:
        assert "\\n" not in str(error), error
        continue
    read += 1
    found.encode_batch_fast(["the cat ﬁ\\u0301 ｶ\\uff9e ½ 你 ﷺ", "a" * 2000])
print(read)
"""
    limits = lambda: resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))  # noqa: E731
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, preexec_fn=limits, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert 0 < int(done.stdout) < len(files)


BROKEN: dict[str, tuple[dict[str, object], str]] = {
    "no vocabulary": ({"vocab": None}, r"model.vocab should be a list of names"),
    "same names": ({"vocab": ["a", "a"]}, r"each once"),
    "control": ({"ids": [0]}, r"none of them PAD, BOS or EOS"),
    "other count": ({"ids": [3]}, r"1 ids for"),
    "no model": ({"proto": None}, r"model.proto should be a text"),
    "no base64": ({"proto": "äöü"}, r"model.proto: "),
    "other model": ({"proto": "AAAA"}, r"not a SentencePiece model"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_of_ours(intact: Path, name: str) -> None:
    change, message = BROKEN[name]
    tokenizer = read_folder(intact).codec.both()[0]
    tree = json.loads(tokenizer.to_json())
    tree["model"] |= change
    with pytest.raises(FolderError, match=message):
        Tokenizer.from_json(json.dumps(tree), "tokenizer.json")


def test_without_the_package(intact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allyouneed.text.sentencepieces.find_spec", lambda name: None)
    with pytest.raises(FolderError, match=r"source.spm: needs sentencepiece: pip install 'allyouneed\[spm\]'"):
        read_folder(intact)


def test_settings_of_training_are_left_out(intact: Path) -> None:
    data = (intact / "source.spm").read_bytes()
    secret = parse_spm(data + _field(2, _field(1, b"/home/someone/corpus.txt")), "x")
    assert b"someone" not in secret.proto()


def test_an_id_of_too_many_digits(tmp_path: Path) -> None:
    """Python refuses to read such numbers."""
    folder, _ = folders.llama(tmp_path / "llama")
    path = folder / "tokenizer_config.json"
    tree = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**tree, "added_tokens_decoder": {"9" * 5000: {"content": "x", "special": True}}}))
    with pytest.raises(FolderError, match=r"added_tokens_decoder: 9{20}: should be an id with a content"):
        read_folder(folder)
