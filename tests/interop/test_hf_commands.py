"""Commands work on an imported folder as on any model folder."""

import json
import shutil
from pathlib import Path

import hf_folders as their
import pytest

from allyouneed.config import parse
from allyouneed.folder import load_folder, save_folder
from allyouneed.pipeline import load
from allyouneed.training import Recipe
from helpers import CommandRunner

pytestmark = [
    pytest.mark.no_shapes,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


def test_translating_between_chosen_languages(tmp_path: Path, command: CommandRunner) -> None:
    folder, _ = their.m2m_100(tmp_path / "theirs")
    status, _, err = command("import", folder, "--out", tmp_path / "ours")
    assert status == 0, err
    ask = ("translate", tmp_path / "ours", "--max-length", 5, "--beam", 1)
    found = [command(*ask, "--from", "eng_Latn", "--to", tag, text="the cat\n")[:2] for tag in ("deu_Latn", "eng_Latn")]
    own = load(tmp_path / "ours").translate(["the cat"], max_length=5, beam=1, target_language="deu_Latn")
    assert found[0] == (0, f"{own[0]}\n")
    assert found[1][1] != found[0][1]
    status, _, err = command(*ask, "--to", "xx", text="the cat\n")
    assert status == 2
    assert "ours: target language: unknown name 'xx'; 2 are known, such as deu_Latn, eng_Latn" in err


@pytest.mark.slow
def test_commands_on_a_translator(tmp_path: Path, command: CommandRunner) -> None:
    folder, _ = their.marian(tmp_path / "theirs")
    their.change_config(folder, num_beams=2, max_length=512, bad_words_ids=[[2]])
    status, out, err = command("import", folder, "--out", tmp_path / "ours")
    assert (status, out) == (0, f"{tmp_path / 'ours'}\n"), err
    assert err.splitlines()[-1].endswith("settings of generate that are not imported: max_length=512")
    assert load_folder(tmp_path / "ours").recipe["decode"]["beam"] == 2
    status, out, _ = command("translate", tmp_path / "ours", "--max-length", 5, text="the cat\n\na dog\n")
    assert (status, len(out.splitlines())) == (0, 3)
    status, out, _ = command("score", tmp_path / "ours", text="the cat\ta dog\n")
    assert status == 0
    assert float(out.split("\t")[0]) < 0
    (tmp_path / "pairs.tsv").write_text("the cat\ta dog\nthe dog\tthe cat\n")
    status, out, _ = command("evaluate", tmp_path / "ours", "--data", tmp_path / "pairs.tsv")
    assert status == 0
    assert "bleu = " in out
    status, out, _ = command("inspect", tmp_path / "ours", "the cat", "--out", tmp_path / "look", "--max-tokens", 4)
    assert status == 0
    status, out, err = command("export", tmp_path / "ours", "--to", "hf", "--out", tmp_path / "again")
    assert (status, out) == (0, f"{tmp_path / 'again'}\n")
    assert "MarianMTModel" in err
    assert json.loads((tmp_path / "again" / "config.json").read_text())["model_type"] == "marian"
    status, _, err = command("evaluate", tmp_path / "ours")
    assert status == 2
    assert "the data of an imported model are not known" in err


def test_imported_models_have_no_data(tmp_path: Path, command: CommandRunner) -> None:
    their.bart(tmp_path / "theirs")
    assert command("import", tmp_path / "theirs", "--out", tmp_path / "ours")[0] == 0
    unknown = "the data of an imported model are not known; "
    _, _, err = command("train", "--from", tmp_path / "ours", "--steps", 1, "--out", tmp_path / "run")
    assert (
        err
        == f"error: {unknown}state files of yours: --train and --valid, or --set task.train=... and task.valid=...\n"
    )
    _, _, err = command("evaluate", tmp_path / "ours")
    assert err == f"error: {tmp_path / 'ours'}: {unknown}give --data, or --source and --reference\n"


def test_texts_of_an_imported_task_fit_the_positions_of_its_model(tmp_path: Path, command: CommandRunner) -> None:
    folder, model = their.encoder(tmp_path / "theirs", "Bert", "ForSequenceClassification")
    longest = model.config.max_position_embeddings
    assert longest < 512
    assert command("import", folder, "--out", tmp_path / "ours")[0] == 0
    assert load_folder(tmp_path / "ours").recipe["task"]["max_length"] == longest
    lines = ["the cat", "the cat " * longest]
    (tmp_path / "labels.tsv").write_text("".join(f"good\t{line}\n" for line in lines))
    most = longest - len(load_folder(tmp_path / "ours").codec.encode_source(""))
    message = f": line 2: a text of more than {most} tokens, for which the model has positions; cut it into pieces\n"
    for arguments, text in (
        (["translate", tmp_path / "ours"], "\n".join(lines)),
        (["score", tmp_path / "ours"], "\n".join(f"{line}\tgood" for line in lines)),
        (["evaluate", tmp_path / "ours", "--data", tmp_path / "labels.tsv"], ""),
    ):
        status, _, err = command(*arguments, text=text)
        assert (status, err.count("\n")) == (2, 1), err
        assert err.endswith(message)


def test_lines_of_a_translator_that_are_too_long_for_its_positions_are_named(
    tmp_path: Path, command: CommandRunner
) -> None:
    folder, model = their.bart(tmp_path / "theirs")
    assert command("import", folder, "--out", tmp_path / "ours")[0] == 0
    longest = model.config.max_position_embeddings
    for name, text in (
        ("translate", f"the cat\n{'the cat ' * longest}\n"),
        ("score", f"the cat\ta dog\n{'the cat ' * longest}\ta dog\n"),
        ("score", f"the cat\ta dog\nthe cat\t{'a dog ' * longest}\n"),
    ):
        status, _, err = command(name, tmp_path / "ours", text=text)
        assert (status, err.count("\n")) == (2, 1), err
        assert "standard input: line 2: a text of more than " in err
        assert "for which the model has positions" in err
    folder, _ = their.gpt2(tmp_path / "gpt2")
    assert command("import", folder, "--out", tmp_path / "language")[0] == 0
    status, _, err = command("score", tmp_path / "language", text=f"the cat\n{'the cat ' * 200}\n")
    assert (status, "standard input: line 2: a text of more than" in err) == (2, True)


def test_commands_on_a_language_model(tmp_path: Path, command: CommandRunner) -> None:
    folder, _ = their.llama(tmp_path / "theirs")
    assert command("import", folder, "--out", tmp_path / "ours")[0] == 0
    status, out, _ = command(
        "generate", tmp_path / "ours", "--prompt", "the cat", "--max-length", 8, "--temperature", 0
    )
    assert status == 0
    assert out
    status, out, _ = command("score", tmp_path / "ours", text="the cat sat\n")
    assert status == 0
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 5)
    status, out, _ = command("evaluate", tmp_path / "ours", "--data", tmp_path / "text.txt")
    assert status == 0
    assert "perplexity = " in out


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification", "ForMaskedLM"])
def test_commands_on_a_classifier(tmp_path: Path, command: CommandRunner, head: str) -> None:
    folder, _ = their.encoder(tmp_path / "theirs", "Bert", head)
    assert command("import", folder, "--out", tmp_path / "ours")[0] == 0
    status, out, _ = command("translate", tmp_path / "ours", text="the cat\na dog\n")
    assert (status, len(out.splitlines())) == (0, 2)
    if head == "ForSequenceClassification":
        assert set(out.split()) <= {"bad", "so-so", "good"}
    if head == "ForTokenClassification":
        (tmp_path / "tags.tsv").write_text("the cat\tbad good\n")
        status, out, _ = command("score", tmp_path / "ours", text="the cat\tbad good\n")
        assert out.endswith("\t2\n")
        status, out, _ = command("evaluate", tmp_path / "ours", "--data", tmp_path / "tags.tsv")
        assert status == 0
        assert "accuracy" in out or "exact" in out
    assert command("inspect", tmp_path / "ours", "the cat", "--out", tmp_path / "look")[0] == 0


def test_commands_on_an_encoder_without_classes(tmp_path: Path, command: CommandRunner) -> None:
    folder, _ = their.encoder(tmp_path / "theirs", "Bert", "Model")
    assert command("import", folder, "--out", tmp_path / "ours")[0] == 0
    status, _, err = command("translate", tmp_path / "ours", text="the cat\n")
    assert status == 2
    assert "a model without classes has no output" in err
    status, _, err = command("export", tmp_path / "ours", "--to", "hf", "--out", tmp_path / "again")
    assert (status, "BertModel" in err) == (0, True)
    status, _, err = command(
        *("export", tmp_path / "ours", "--to", "hf", "--out", tmp_path / "more", "--quantization", "int8")
    )
    assert status == 2
    assert "--quantization int8: --to hf writes float32, bfloat16, float16; int8 is for --to ctranslate2" in err


def test_a_snapshot_in_the_cache_of_huggingface_hub_is_read(tmp_path: Path, command: CommandRunner) -> None:
    """Its files are links to `blobs`."""
    plain, _ = their.llama(tmp_path / "plain")
    cache = tmp_path / "hub" / "models--org--name"
    snapshot = cache / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    shutil.copytree(plain, cache / "blobs")
    for file in plain.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    status, _, err = command("import", cache, "--out", tmp_path / "ours")
    assert (status, err) == (
        2,
        f"error: {cache}: has no config.json; it is not a folder of Hugging Face; perhaps {snapshot} is meant\n",
    )
    for folder in (plain, snapshot):
        assert command("import", folder, "--out", tmp_path / f"of-{folder.name}")[0] == 0
    one, other = (tmp_path / f"of-{name}" / "model.safetensors" for name in ("plain", "0123abc"))
    assert one.read_bytes() == other.read_bytes()
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to("../../../../plain/config.json")
    status, _, err = command("import", snapshot, "--out", tmp_path / "other")
    assert status == 2
    assert "config.json: is a link that leaves the folder" in err
    shutil.rmtree(cache / "blobs")
    (cache / "blobs").symlink_to(plain)  # a cache that was made to lead elsewhere
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to("../../blobs/config.json")
    status, _, err = command("import", snapshot, "--out", tmp_path / "other")
    assert status == 2
    assert "config.json: is a link that leaves the folder" in err


def test_the_beam_of_generation_config_counts(tmp_path: Path, command: CommandRunner) -> None:
    """As in `generate`, before that of config.json."""
    folder, _ = their.marian(tmp_path / "theirs")
    their.change_config(folder, num_beams=2)
    file = folder / "generation_config.json"
    tree = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**tree, "num_beams": 3, "max_length": 99}))
    status, _, err = command("import", folder, "--out", tmp_path / "ours")
    assert (status, err.splitlines()[-1]) == (0, "settings of generate that are not imported: max_length=99")
    assert load_folder(tmp_path / "ours").recipe["decode"]["beam"] == 3


def test_folders_of_hugging_face_are_not_models_yet(tmp_path: Path, command: CommandRunner) -> None:
    folder, _ = their.llama(tmp_path / "theirs")
    status, _, err = command("generate", folder, "--prompt", "the cat")
    remedy = f"`allyouneed import {folder} --out FOLDER` makes a model folder of it"
    assert (status, err) == (
        2,
        f"error: {folder}: not a model folder, but perhaps one of Hugging Face; {remedy}\n",
    )
    assert command("import", folder, "--out", tmp_path / "ours")[0] == 0
    for target, what in (("hf", "`allyouneed import"), ("ctranslate2", "give the model that it was made from")):
        what = f"not the config of a model folder; {what}" if target == "hf" else f"not a model folder; {what}"
        out = tmp_path / target
        assert command("export", tmp_path / "ours", "--to", target, "--out", out)[0] == 0
        status, _, err = command("generate", out, "--prompt", "the cat")
        assert status == 2
        assert what in err


def test_wrong_paths_and_formats_are_refused(
    tmp_path: Path, command: CommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, err = command("import", "Helsinki-NLP/opus-mt-en-de", "--out", "ours")
    assert status == 2
    assert "no such folder; nothing is downloaded: `hf download Helsinki-NLP/opus-mt-en-de --local-dir" in err
    status, _, err = command("import", tmp_path / "nowhere", "--out", tmp_path / "ours")
    assert (status, err) == (2, f"error: {tmp_path / 'nowhere'}: no such folder\n")
    status, _, err = command("export", tmp_path / "nowhere", "--to", "onyx", "--out", tmp_path / "ours")
    assert status == 2
    assert "unknown name 'onyx'" in err


def test_import_replaces_only_imported_folders(tmp_path: Path, command: CommandRunner) -> None:
    folder, _ = their.llama(tmp_path / "theirs")
    assert command("import", folder, "--out", tmp_path / "ours")[0] == 0
    assert command("import", folder, "--out", tmp_path / "ours")[0] == 0
    assert command("export", tmp_path / "ours", "--to", "hf", "--out", tmp_path / "hf")[0] == 0
    bundle = load_folder(tmp_path / "ours")
    recipe = parse(Recipe, {**bundle.recipe, "about": "trained for days"})
    save_folder(tmp_path / "trained", bundle.model, bundle.codec, recipe, "")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "stdin"}
    for source, out, named in [
        ("hf", "hf", "is the folder to read"),
        ("hf", "hf/ours", "is inside"),
        ("theirs", "hf", "is an export for transformers"),
        ("theirs", "trained", "is a model folder, which would be lost"),
        ("ours", "new", "is a model folder of allyouneed already"),
    ]:
        status, _, err = command("import", tmp_path / source, "--out", tmp_path / out)
        assert (status, err.count("\n")) == (2, 1)
        assert named in err
        after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "stdin"}
        assert after == before


def test_an_export_is_verified(tmp_path: Path, command: CommandRunner) -> None:
    folder, _ = their.llama(tmp_path / "theirs")
    out = tmp_path / "hf"
    assert command("import", folder, "--out", tmp_path / "ours")[0] == 0
    assert command("export", tmp_path / "ours", "--to", "hf", "--out", out)[0] == 0
    status, printed, _ = command("verify", out)
    assert status == 0
    assert f"ok       export      {out}: an export for transformers of Hugging Face, unchanged\n" in printed
    (out / "config.json").write_text((out / "config.json").read_text().replace("llama", "lLama"))
    status, printed, err = command("verify", out)
    assert status == 2
    assert f"failed   sha256      {out}/config.json: changed since it was written" in printed
    assert "export it again" in err
