"""`export`, and `translate`, `evaluate` and `serve` with another engine or in int8, as users call them."""

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from engine_models import LETTERS, randomise

from allyouneed import kernels
from allyouneed.cli import run
from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.folder import save_folder
from allyouneed.serve import ServeConfig, open_models
from allyouneed.serve.backend import Backend
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.text.tokenizer import of_symbols
from allyouneed.training import Recipe
from helpers import CommandRunner

pytestmark = [
    pytest.mark.no_shapes,
    pytest.mark.skipif(find_spec("ctranslate2") is None, reason="ctranslate2 is not installed: allyouneed[ct2]"),
]
SMALL = {"width": 16, "hidden": 24, "mixer": {"type": "softmax", "heads": 2}, "output_bias": True}
TEXTS = "seven\n\nforty-one\nnine hundred\n"


def saved(folder: Path, model: dict[str, object]) -> str:
    recipe = parse(Recipe, {"task": {"type": "numbers"}, "model": model, "decode": {"beam": 3, "length_penalty": 1.2}})
    letters = of_symbols(LETTERS, "characters")
    built = recipe.model.build(Sizes(letters.size, letters.size))
    randomise(built, 4.0)
    return str(save_folder(folder, built, Codec(letters, letters), recipe, ""))


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    model = {"type": "encoder-decoder", **SMALL, "encoder_layers": 1, "decoder_layers": 1}
    return saved(tmp_path_factory.mktemp("models") / "translator", model)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a model that reads source and target as one text."""
    torch.manual_seed(0)
    return saved(tmp_path_factory.mktemp("models") / "decoder", {"type": "decoder", **SMALL, "layers": 2})


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    model = {"type": "decoder", **SMALL, "layers": 1}
    recipe = parse(Recipe, {"task": {"type": "language", "train": "x.txt", "split": [0.9, 0.1]}, "model": model})
    letters = of_symbols(LETTERS, "characters")
    built = recipe.model.build(Sizes(letters.size, letters.size))
    randomise(built, 4.0)
    folder = tmp_path_factory.mktemp("models") / "language"
    return str(save_folder(folder, built, Codec(target=letters), recipe, ""))


@pytest.fixture
def output_of(command: CommandRunner) -> Callable[..., str]:
    """Return a function that runs a command and returns what it prints."""

    def run(*arguments: str, stdin: str = TEXTS) -> str:
        status, out, error = command(*arguments, text=stdin)
        assert status == 0, error
        return out

    return run


@pytest.mark.parametrize("options", [["--beam", "1"], ["--n-best", "3", "--scores"]], ids=str)
@pytest.mark.parametrize("kind", ["translator", "decoder"])
def test_both_engines_print_the_same(
    kind: str, options: list[str], output_of: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    command = ["translate", request.getfixturevalue(kind), *options]
    assert output_of(*command, "--engine", "ctranslate2") == output_of(*command)


@pytest.mark.parametrize("options", [[], ["--n", "2"]], ids=str)
@pytest.mark.parametrize("kind", ["translator", "decoder", "language"])
def test_both_engines_generate_the_same(
    kind: str, options: list[str], output_of: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    command = ["generate", request.getfixturevalue(kind), "--temperature", "0", "--max-length", "30", *options]
    found = output_of(*command, "--engine", "ctranslate2", stdin="forty-one")
    assert found == output_of(*command, stdin="forty-one")
    assert found.strip()


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_generate_with_byte_level_tokens(language: str, engine: str, output_of: Callable[..., str]) -> None:
    with torch.no_grad():
        if not kernels.usable(torch.empty(0)):
            pytest.skip("no C compiler: int8 is refused")
    options = ["--temperature", "0", "--max-length", "5", "--engine", engine, "--int8"]
    assert output_of("generate", language, *options, stdin="forty").strip()


def test_export_prints_what_it_has_checked(translator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["export", translator, "--to", "ctranslate2", "--quantization", "int8", "--out", str(tmp_path / "o")]) == 0
    )
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'o'}\n"
    assert "log-probabilities within" in captured.err
    assert "0%  running our engine on random ids" in captured.err  # not a terminal: an occasional line
    assert {path.name for path in (tmp_path / "o").iterdir()} >= {"model.bin", "tokenizer.json", "README.md"}


REFUSED = [
    (["export", "{}", "--to", "onnx", "--quantization", "int8", "--out", "o"], "--quantization int8"),
    (["export", "{}", "--to", "tflite", "--out", "o"], "--to tflite"),
    (["translate", "{}", "--engine", "ctranslate2", "--device", "cuda"], "--engine ctranslate2 runs on the cpu"),
    (["generate", "{}", "--engine", "ctranslate2", "--prompt", "a"], "--temperature 1: --engine ctranslate2"),
]


@pytest.mark.parametrize(("arguments", "named"), REFUSED, ids=str)
def test_refusals(
    translator: str, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    filled = [translator if one == "{}" else str(tmp_path / one) if one == "o" else one for one in arguments]
    assert run(filled) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_export_replaces_only_what_it_wrote_before(
    translator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, other = tmp_path / "m", tmp_path / "other"
    for copy in (model, other, tmp_path / "run" / "model"):
        shutil.copytree(translator, copy)
    (tmp_path / "run" / "recipe.toml").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    assert run(["export", str(model), "--to", "onnx", "--out", str(tmp_path / "onnx")]) == 0
    shutil.copytree(tmp_path / "onnx", tmp_path / "added")
    (tmp_path / "added" / "notes.txt").write_text("mine")
    before = content(tmp_path)
    refused = [
        ("m", "m", "is the folder to read"),
        ("m", "link/m", "is the folder to read"),
        ("m", "m/onnx", "is inside"),
        ("m", ".", "contains"),
        ("run", "run", "is the folder to read"),
        ("run", "run/model", "is inside"),
        ("run/model", "run", "contains"),
        ("m", "other", "is a model folder"),
        ("m", "other/onnx", "is inside"),
        ("m", "added", "notes.txt was added after the export"),
    ]
    capsys.readouterr()
    for to in ("onnx", "ctranslate2", "hf"):
        others = [] if to == "onnx" else [("m", "onnx", "is an export for ONNX")]
        for source, out, named in [*refused[: 9 + (to == "onnx")], *others]:
            assert run(["export", str(tmp_path / source), "--to", to, "--out", str(tmp_path / out)]) == 2
            error = capsys.readouterr().err
            assert named in error
            assert error.count("\n") == 1
            assert content(tmp_path) == before
    (tmp_path / "onnx" / "decoder.onnx").unlink()  # a damaged export is written again
    assert run(["export", str(other), "--to", "onnx", "--out", str(tmp_path / "onnx")]) == 0
    assert content(tmp_path) == before


@pytest.mark.parametrize(("to", "named"), [("onnx", "ONNX runtimes"), ("ctranslate2", "CTranslate2")])
def test_an_export_is_verified(
    translator: str, to: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", translator, "--to", to, "--out", str(tmp_path / "o")]) == 0
    assert run(["verify", str(tmp_path / "o")]) == 0
    assert f"{tmp_path / 'o'}: an export for {named}, unchanged\n" in capsys.readouterr().out


def test_a_model_that_ctranslate2_cannot_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "lstm", {"type": "seq2seq", "cell": "lstm", "width": 8})
    assert run(["translate", folder, "--engine", "ctranslate2"]) == 2
    assert "--engine ctranslate2 runs encoder-decoder and decoder models" in capsys.readouterr().err


def test_signatures_mention_int8(translator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.no_grad():
        if not kernels.usable(torch.empty(0)):
            pytest.skip("no C compiler: int8 is refused")
    (tmp_path / "pairs.tsv").write_text("seven\tsieben\ntwo\tzwei\n", encoding="utf-8")
    assert run(["evaluate", translator, "--data", str(tmp_path / "pairs.tsv"), "--int8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.endswith("|int8") for line in lines)


def test_a_server_refuses_ctranslate2_for_a_language_model(language: str) -> None:
    with pytest.raises(ConfigError, match="--engine ctranslate2 serves translators only"):
        open_models([f"m={language}"], ctranslate2=True)


@pytest.mark.parametrize("kind", ["translator", "decoder"])
def test_a_server_searches_with_ctranslate2(kind: str, request: pytest.FixtureRequest) -> None:
    texts, folder = TEXTS.split(), request.getfixturevalue(kind)
    found = []
    for ctranslate2 in (False, True):
        models = open_models([f"m={folder}"], {"m": ("en", "de")}, ctranslate2=ctranslate2)
        backend, served = Backend(ServeConfig(), models), models["m"]
        work = backend.search(served, served.search.model_copy(update={"n_best": 3}))
        found.append([[answer.text for answer in answers] for answers in work.run(texts)])
    assert found[0] == found[1]
