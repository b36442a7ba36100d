"""`train --from MODEL` on other data: the model's own tokenizers, its weights, and a new head where classes are new."""

import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tuning_runs import (
    OTHER,
    command,
    first_loss,
    refused,
    tune,
    write_labels,
    write_pairs,
)

from allyouneed.config import parse
from allyouneed.decode import SearchConfig
from allyouneed.errors import ConfigError
from allyouneed.evaluation.measure import evaluate_files
from allyouneed.evaluation.settings import recipe_of, sentence_splitter
from allyouneed.folder import load_folder, save_folder
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.encoder import EncoderConfig
from allyouneed.sizes import Sizes
from allyouneed.tasks.classification import ClassificationConfig
from allyouneed.tasks.language import LanguageConfig
from allyouneed.tasks.translation import TranslationConfig
from allyouneed.text.codec import Codec
from allyouneed.text.specials import BOS, EOS, PAD
from allyouneed.text.tokenizer import TokenizerConfig, train
from allyouneed.training import Recipe
from allyouneed.training.checkpoint import Checkpoints
from allyouneed.verification.verify import verify_folder
from allyouneed.weights import model_tensors

Capture = pytest.CaptureFixture[str]


def test_a_translator_learns_other_pairs_in_its_own_ids(translator: str, tmp_path: Path, capsys: Capture) -> None:
    base, files = load_folder(translator), write_pairs(tmp_path, "other", OTHER)
    data = ["--train", files[0], "--train", files[1], "--valid", files[0], "--valid", files[1]]
    tuned, notes = tune(capsys, translator, tmp_path / "run", *data)
    assert "starting from the weights of" in notes
    assert "new and random" not in notes
    assert tuned.codec.same_ids_as(base.codec)
    assert recipe_of(tuned).task.model_dump()["train"] == files
    assert tuned.recipe["start"]["sha256"] == base.sha256
    # Before the first step the weights are those of the base.
    before = {one.name: one.value for one in evaluate_files(base, files, SearchConfig(), print)}
    assert first_loss(tmp_path / "run") == pytest.approx(before["loss"], rel=1e-5)
    command(capsys, "evaluate", tmp_path / "run", "--split", "valid")
    assert all(finding.verdict != "failed" for finding in verify_folder(tmp_path / "run"))


def test_a_model_reads_as_many_sentences_as_the_lines_it_was_tuned_on(
    translator: str, tmp_path: Path, capsys: Capture
) -> None:
    files = write_pairs(tmp_path, "other", [("A dog. A cat. A cow.", "Ein Hund. Eine Katze. Eine Kuh.")])
    data = ["--train", files[0], "--train", files[1], "--valid", files[0], "--valid", files[1]]
    text, base = "A dog. A cat. A cow. A dog.", load_folder(translator)
    assert base.codec.sentences == 1
    assert sentence_splitter(base).split(text).pieces == ("A dog.", "A cat.", "A cow.", "A dog.")
    tuned, _ = tune(capsys, translator, tmp_path / "run", *data)
    assert sentence_splitter(tuned).split(text).pieces == ("A dog. A cat. A cow.", "A dog.")
    prepared = tmp_path / "run" / "data" / "prepared"
    before = prepared.stat().st_ino
    command(capsys, "evaluate", tmp_path / "run", "--split", "valid")
    assert prepared.stat().st_ino == before  # the number is not a reason to prepare the data again
    single = write_pairs(tmp_path, "single", OTHER)
    data = ["--train", single[0], "--train", single[1], "--valid", single[0], "--valid", single[1]]
    again, _ = tune(capsys, str(tmp_path / "run"), tmp_path / "again", *data)
    assert again.codec.sentences == 3  # what it has learnt before, it still can


def test_a_recipe_file_without_a_model_and_with_weights(translator: str, tmp_path: Path, capsys: Capture) -> None:
    files, base = write_pairs(tmp_path, "other", OTHER), load_folder(translator)
    general = recipe_of(base).task.model_dump()["train"]
    corpora = f"[{{files={files}, weight=2}}, {{files={general}}}]".replace("'", '"')
    text = f'[task]\ntype = "translation"\ntrain = {corpora}\nvalid = {files}\n[model]\ndropout = 0.0\n'
    (tmp_path / "tune.toml").write_text(text)
    command(capsys, "train", tmp_path / "tune.toml", "--from", translator, "--steps", 2, "--out", tmp_path / "run")
    recipe = tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())
    assert recipe["model"]["dropout"] == 0.0
    assert recipe["model"]["width"] == 16
    assert load_folder(tmp_path / "run").codec.same_ids_as(base.codec)


def test_a_language_model_learns_another_text(language_model: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "other.txt").write_text("zebras sat on the hat. " * 20)  # z and b are unknown to the model
    data = ["--train", tmp_path / "other.txt", "--set", "task.split=[0.5,0.5]"]
    tuned, _ = tune(capsys, language_model, tmp_path / "run", *data)
    assert tuned.codec.same_ids_as(load_folder(language_model).codec)


def test_an_encoder_with_new_classes_keeps_its_body(classifier: str, tmp_path: Path, capsys: Capture) -> None:
    base, file = load_folder(classifier), write_labels(tmp_path, "other.tsv", "xyz")
    data = ["--train", file, "--valid", file, "--set", "train.optimizer.lr=1e-30", "--set", "train.clip=0"]
    tuned, notes = tune(capsys, classifier, tmp_path / "run", *data)
    assert "51 weights of its head are new and random: head.weight_VD, head.bias_V" in notes
    assert tuned.codec.classes == ("x", "y", "z")
    old, new = model_tensors(base.model), model_tensors(tuned.model)
    assert old.keys() == new.keys()
    for name, tensor in old.items():
        assert name.startswith("head.") or torch.equal(tensor, new[name]), name
    assert new["head.weight_VD"].shape == (3, 16)


def test_classes_that_the_model_has_keep_their_head(classifier: str, tmp_path: Path, capsys: Capture) -> None:
    file, two = write_labels(tmp_path, "other.tsv", "b"), write_labels(tmp_path, "two.tsv", "ba")
    tuned, notes = tune(capsys, classifier, tmp_path / "run", "--train", two, "--valid", file)
    assert "new and random" not in notes
    assert tuned.codec.classes == ("a", "b")


def test_a_run_resumes_without_the_folder_it_began_with(translator: str, tmp_path: Path, capsys: Capture) -> None:
    base, files = shutil.copytree(translator, tmp_path / "base"), write_pairs(tmp_path, "other", OTHER)
    data = ["--train", files[0], "--train", files[1], "--valid", files[0], "--valid", files[1]]
    constant = ["--set", "train.schedule.type=constant", "--set", "train.schedule.warmup=0"]
    arguments = ["train", "--from", base, *data, *constant]
    command(capsys, *arguments, "--steps", 4, "--out", tmp_path / "whole")
    command(capsys, *arguments, "--steps", 2, "--out", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "data")
    recipe = parse(Recipe, tomllib.loads((tmp_path / "whole" / "recipe.toml").read_text()))
    shutil.rmtree(base)
    from allyouneed.training import train as train_run

    train_run(recipe, tmp_path / "parts")
    weights = []
    for name in ("whole", "parts"):
        checkpoints = Checkpoints(tmp_path / name)
        latest = checkpoints.latest()
        assert latest is not None
        weights.append(checkpoints.load(latest).tensors["model"])
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name


def test_an_imported_classifier_reads_texts_in_its_own_frame(tmp_path: Path) -> None:
    tokenizer = train(["a text of words"] * 3, TokenizerConfig(size=265))
    codec = Codec(source=tokenizer, classes=(), frame=((BOS,), (EOS,)))
    file = write_labels(tmp_path, "labels.tsv", "ab")
    task = ClassificationConfig.model_validate({"train": file, "valid": file, "max_length": 20})
    data = task.prepare_with(codec, tmp_path / "data", 1)
    assert data.codec.frame == ((BOS,), (EOS,))
    batch = next(iter(data.held_out("valid")))
    assert batch.source_BS is not None
    texts = [text for text, _ in data.examples("valid")]
    rows = sorted([id for id in row if id != PAD] for row in batch.source_BS.tolist())
    assert rows == sorted([BOS, *tokenizer.encode(text), EOS] for text in texts)


def test_an_imported_encoder_for_masked_words_becomes_a_classifier(tmp_path: Path, capsys: Capture) -> None:
    """As an imported BertForMaskedLM: tied, no pool, a transform; and more rows than the tokenizer has ids."""
    tokenizer = train(["a text of words"] * 3, TokenizerConfig(size=265))
    names = tuple(f"word {number}" for number in range(280))
    codec = Codec(source=tokenizer, classes=names, per_position=True, frame=((BOS,), (EOS,)))
    mixer = {"type": "softmax", "heads": 2}
    positions = {"type": "learned", "max_length": 24}
    sizes = {"width": 16, "hidden": 16, "layers": 1}
    settings = {**sizes, "mixer": mixer, "positions": positions, "pool": "none", "transform": "norm", "tied": True}
    config = EncoderConfig.model_validate(settings)
    model = config.build(Sizes(280, 280, shared=True)).eval()
    recipe = parse(Recipe, {"task": {"type": "tags"}, "model": config.model_dump(mode="json")})
    save_folder(tmp_path / "masked", model, codec, recipe, "# card\n")
    file = write_labels(tmp_path, "labels.tsv", "ab")
    data = ["--task", "classification", "--train", file, "--valid", file]
    tuned, notes = tune(capsys, str(tmp_path / "masked"), tmp_path / "run", *data)
    assert "34 weights of its head are new and random" in notes
    assert tuned.codec.classes == ("a", "b")
    assert recipe_of(tuned).task.model_dump()["max_length"] == 24
    assert recipe_of(tuned).train.optimizer.lr == 1e-4  # TUNING: the folder was never trained here
    assert load_folder(tmp_path / "run").model.sizes == Sizes(280, 2)


def test_documents_of_a_model_without_bos_are_separated_by_eos(tmp_path: Path) -> None:
    tokenizer = train(["a text of words"] * 3, TokenizerConfig(size=265), sentences=False)
    codec = Codec(target=tokenizer, bos=False)
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    files = [str(tmp_path / "one.txt"), str(tmp_path / "two.txt")]
    task = LanguageConfig.model_validate({"train": files, "valid": files, "context": 3})
    stream = task.prepare_with(codec, tmp_path / "data", 1)._streams
    one, two = tokenizer.encode("text of one.txt"), tokenizer.encode("text of two.txt")
    assert stream["train"].tolist() == [EOS, *one, EOS, *two]
    assert stream["valid"].tolist() == [*one, *two]


def test_a_multilingual_model_learns_a_pair_of_its_languages(tmp_path: Path) -> None:
    tokenizer = train(["a text of words"] * 3, TokenizerConfig(size=265))
    codec = Codec(source=tokenizer, target=tokenizer, frame=((260,), (EOS,)), tags={"en": 260, "de": 261, "fr": 262})
    files = write_pairs(tmp_path, "other", OTHER)
    settings = {"train": files, "valid": files}
    with pytest.raises(ConfigError, match=r"the model knows 3 languages \(de, en, fr, ...\); name two: task.tags"):
        TranslationConfig.model_validate(settings).prepare_with(codec, tmp_path / "data", 1)
    task = TranslationConfig.model_validate({**settings, "tags": ["fr", "de"]})
    data = task.prepare_with(codec, tmp_path / "data", 1)
    batch = next(iter(data.held_out("valid")))
    assert batch.source_BS is not None
    assert batch.input_BT is not None
    assert batch.output_BT is not None
    assert set(batch.source_BS[:, 0].tolist()) == {262}
    assert batch.input_BT[:, :2].unique(dim=0).tolist() == [[BOS, 261]]
    assert set(batch.output_BT[:, 0].tolist()) == {261}
    assert data.codec.prefix == (261,)


def test_prepared_data_of_other_uses_is_unchanged(tmp_path: Path) -> None:
    """The codec is part of the key only if one is given."""
    file = write_labels(tmp_path, "labels.tsv", "ab")
    task = ClassificationConfig.model_validate({"train": file, "valid": file})
    plain = task.prepare(tmp_path / "a", 1)
    assert "codec" not in (tmp_path / "a" / "prepared" / "key.json").read_text()
    again = task.prepare_with(plain.codec, tmp_path / "b", 1)
    assert '"codec": "' in (tmp_path / "b" / "prepared" / "key.json").read_text()
    assert again.codec == replace(plain.codec, source=again.codec.source)
    for ours, theirs in zip(plain.held_out("valid"), again.held_out("valid"), strict=True):
        assert ours.source_BS is not None
        assert theirs.source_BS is not None
        assert torch.equal(ours.source_BS, theirs.source_BS)


def test_what_cannot_be_tuned_is_refused(
    translator: str, language_model: str, classifier: str, tmp_path: Path, capsys: Capture
) -> None:
    files, labels = write_pairs(tmp_path, "other", OTHER), write_labels(tmp_path, "other.tsv", "xy")
    pairs = ["--train", files[0], "--train", files[1], "--valid", files[0], "--valid", files[1]]
    out = ["--steps", 1, "--out", tmp_path / "run"]

    def error(start: str, *arguments: object) -> str:
        return refused(capsys, "train", "--from", start, *arguments, *out)

    found = error(language_model, "--task", "translation", *pairs)
    assert "needs a model that reads a source and generates a target; this one continues texts" in found
    assert "needs a model of kind decoder or encoder-decoder" in error(classifier, "--task", "translation", *pairs)
    found = error(translator, "--task", "classification", "--train", labels, "--valid", labels)
    assert "task 'classification' needs a model of kind encoder" in found
    assert "task.tokenizer.size: has no effect with --from" in error(
        translator, *pairs, "--set", "task.tokenizer.size=9"
    )
    assert "task.shared: has no effect with --from" in error(translator, *pairs, "--set", "task.shared=false")
    assert "drop --model" in error(translator, "--model", "decoder", *pairs)
    assert "tensor" in error(translator, *pairs, "--set", "model.width=32")
    assert not (tmp_path / "run" / "model").exists()


def test_a_decoder_of_running_text_is_no_translator_even_with_one_vocabulary(tmp_path: Path, capsys: Capture) -> None:
    tokenizer = train(["a text of words"] * 3, TokenizerConfig(size=265))
    mixer = {"type": "softmax", "heads": 2}
    config = DecoderConfig(width=16, hidden=16, layers=1, mixer=mixer)  # type: ignore[arg-type]
    recipe = parse(
        Recipe, {"task": {"type": "language", "train": "x", "valid": "x"}, "model": config.model_dump(mode="json")}
    )
    save_folder(tmp_path / "lm", config.build(Sizes(265, 265, shared=True)), Codec(target=tokenizer), recipe, "# c\n")
    files = write_pairs(tmp_path, "other", OTHER)
    pairs = ["--train", files[0], "--train", files[1], "--valid", files[0], "--valid", files[1]]
    found = refused(
        capsys,
        "train",
        "--from",
        tmp_path / "lm",
        "--task",
        "translation",
        *pairs,
        "--steps",
        1,
        "--out",
        tmp_path / "r",
    )
    assert "lm: cannot be trained on this task" in found
