"""Languages of a multilingual model, in scores, evaluation and CTranslate2: compared with transformers."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import hf_folders as their
import pytest
import torch
from engine_models import bundle_of

from allyouneed.decode import SampleConfig, SearchConfig, search, stream
from allyouneed.evaluation.settings import in_languages
from allyouneed.folder import load_folder
from allyouneed.interop.hf.load import import_folder
from allyouneed.pipeline import Pipeline, load
from allyouneed.text.specials import BOS
from allyouneed.training.log import read_log
from helpers import CommandRunner

pytestmark = [
    pytest.mark.no_shapes,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
TEXTS, TARGETS = their.SENTENCES[:3], ["a dog", "the cat sat", "on"]
PAIRS = [("deu_Latn", "eng_Latn"), (None, "deu_Latn"), ("deu_Latn", None)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """Return an imported folder, the model of transformers, and its tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    _, theirs = their.m2m_100(folder / "theirs")
    import_folder(folder / "theirs", folder / "ours")
    return folder / "ours", theirs.eval(), their.Tokenizer.from_file(str(folder / "theirs" / "tokenizer.json"))


def source_ids(tokenizer: Any, text: str, language: str | None) -> list[int]:
    """Return the ids of a source as transformers reads them, with the tag of a language."""
    ids: list[int] = tokenizer.encode(text).ids
    return ids if language is None else [tokenizer.token_to_id(language), *ids[1:]]


def their_logprobs(models: Any, text: str, target: str, source: str | None, tag: str) -> list[float]:
    """Return log P of the tag, the tokens of a target and its end, from the logits of transformers."""
    _, theirs, tokenizer = models
    end = theirs.config.eos_token_id
    labels = [tokenizer.token_to_id(tag), *tokenizer.encode(target, add_special_tokens=False).ids, end]
    given = torch.tensor([[theirs.config.decoder_start_token_id, *labels[:-1]]])
    with torch.no_grad():
        logits = theirs(input_ids=torch.tensor([source_ids(tokenizer, text, source)]), decoder_input_ids=given).logits
    found: list[float] = logits[0].log_softmax(-1).gather(1, torch.tensor(labels)[:, None])[:, 0].tolist()
    return found


@pytest.mark.parametrize(("source", "target"), PAIRS[:2])
def test_scores_are_those_of_transformers(models: Any, source: str | None, target: str) -> None:
    chosen = {"source_language": source, "target_language": target}
    found = load(models[0]).score(list(zip(TEXTS, TARGETS, strict=True)), **chosen)
    for text, reference, scored in zip(TEXTS, TARGETS, found, strict=True):
        right = their_logprobs(models, text, reference, source, target)[1:]  # the tag is given
        assert scored.token_logprobs == pytest.approx(right, abs=1e-5)


def test_score_takes_languages(models: Any, command: CommandRunner) -> None:
    found = {}
    for source, target in PAIRS[:2]:
        chosen = {"source_language": source, "target_language": target}
        options = [option for name, tag in (("--from", source), ("--to", target)) if tag for option in (name, tag)]
        status, out, err = command("score", models[0], *options, text="the cat\ta dog\n")
        assert status == 0, err
        (scored,) = load(models[0]).score([("the cat", "a dog")], **chosen)
        assert out == f"{scored.logprob:.6f}\t{scored.tokens}\n"
        found[target] = out
    assert len(set(found.values())) == 2
    status, _, err = command("score", models[0], "--to", "xx", text="a\tb\n")
    assert status == 2
    assert "target language: unknown name 'xx'; 2 are known" in err


def test_evaluation_has_the_loss_of_transformers(models: Any, tmp_path: Path, command: CommandRunner) -> None:
    for name, lines in (("source", TEXTS), ("reference", TARGETS)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = ["--source", tmp_path / "source", "--reference", tmp_path / "reference", "--beam", 1]
    status, out, err = command("evaluate", models[0], *files, "--from", "deu_Latn", "--to", "eng_Latn")
    assert status == 0, err
    rows = [
        their_logprobs(models, text, target, "deu_Latn", "eng_Latn")
        for text, target in zip(TEXTS, TARGETS, strict=True)
    ]
    values = [value for row in rows for value in row]  # the tag is learnt, so it counts for the loss
    found = {line.split(" = ")[0]: line.split(" = ")[1].split()[0] for line in out.splitlines()}
    assert float(found["loss"]) == pytest.approx(-sum(values) / len(values), abs=1e-4)
    assert "|from:deu_Latn|to:eng_Latn" in out
    answers = load(models[0]).translate(TEXTS, beam=1, source_language="deu_Latn", target_language="eng_Latn")
    import sacrebleu

    assert float(found["chrf"]) == pytest.approx(sacrebleu.corpus_chrf(answers, [TARGETS]).score, abs=1e-3)


@pytest.mark.parametrize("languages", PAIRS)
@pytest.mark.parametrize(("beam", "n_best", "alpha"), [(1, 1, 0.0), (3, 1, 0.0), (3, 2, 0.8)])
def test_ctranslate2_translates_between_languages(
    models: Any, languages: tuple[str | None, str | None], beam: int, n_best: int, alpha: float
) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: pip install 'allyouneed[ct2]'")
    from allyouneed.interop.ctranslate2.engine import CTranslate2Engine

    bundle = load_folder(models[0])
    bundle = replace(bundle, codec=in_languages(bundle, *languages))
    sources = bundle.codec.encode_sources(TEXTS)
    for longest in (1, 6, 9):
        config = SearchConfig(beam=beam, n_best=n_best, length_penalty=alpha, max_length=longest)
        ours = search(bundle.model, sources, config, prefix=bundle.codec.prefix)
        found = CTranslate2Engine(bundle).search(sources, config)
        for one, other in zip(ours, found, strict=True):
            assert [best.ids for best in other] == [best.ids for best in one]
            assert [best.score for best in other] == pytest.approx([best.score for best in one], abs=1e-4)


def test_the_engine_generates_what_transformers_does(models: Any, command: CommandRunner) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: pip install 'allyouneed[ct2]'")
    folder, theirs, tokenizer = models
    codec, lines = load_folder(folder).codec, "".join(f"{text}\n" for text in TEXTS)
    options = ["--beam", 1, "--max-length", 8, "--from", "deu_Latn", "--to", "eng_Latn", "--engine", "ctranslate2"]
    status, out, err = command("translate", folder, *options, "--sentences", "never", text=lines)
    assert status == 0, err
    for text, line in zip(TEXTS, out.splitlines(), strict=True):
        row = theirs.generate(
            torch.tensor([source_ids(tokenizer, text, "deu_Latn")]),
            num_beams=1,
            max_new_tokens=9,
            do_sample=False,
            forced_bos_token_id=tokenizer.token_to_id("eng_Latn"),
            bad_words_ids=[[theirs.config.pad_token_id], [theirs.config.bos_token_id]],
        )[0].tolist()
        names = [tokenizer.id_to_token(number) for number in row[2:] if number != theirs.config.eos_token_id]
        assert codec.target is not None
        assert line == codec.decode_target([codec.target.vocabulary[name] for name in names]).replace("\n", " ")


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("prefix", [(7,), (9, 11)])
@pytest.mark.parametrize(("beam", "n_best", "alpha"), [(1, 1, 0.0), (4, 1, 0.0), (3, 3, 0.8)])
def test_prefixes_of_random_models(kind: str, prefix: tuple[int, ...], beam: int, n_best: int, alpha: float) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: pip install 'allyouneed[ct2]'")
    from allyouneed.interop.ctranslate2.engine import CTranslate2Engine

    settings = {"positions": {"type": "learned", "max_length": 24}, "output_bias": True}
    bundle = bundle_of(kind, settings, sharp=2.0)
    bundle = replace(bundle, codec=replace(bundle.codec, prefix=prefix))
    engine, sources = CTranslate2Engine(bundle), bundle.codec.encode_sources(["a", "zwölf und zwei", "ab", "x y z"])
    config = SearchConfig(beam=beam, n_best=n_best, length_penalty=alpha, max_length=40)
    ours = search(bundle.model, sources, config, prefix=prefix)
    for one, other in zip(ours, engine.search(sources, config), strict=True):
        assert [best.ids for best in other] == [best.ids for best in one]
        # Hypotheses cut at the last position keep log-probabilities that exclude padding and begin-of-text.
        assert [best.score for best in other] == pytest.approx([best.score for best in one], abs=1e-3)
    greedy = SampleConfig(temperature=0, max_length=12)
    for source in sources:
        right = list(stream(bundle.model, list(prefix), greedy, source, begin=BOS))
        assert list(engine.stream(source, greedy)) == right


def test_a_tuned_model_translates_between_its_languages(models: Any, tmp_path: Path, command: CommandRunner) -> None:
    files = []
    for name, lines in (("a", TEXTS), ("b", TARGETS)):
        files.append(tmp_path / name)
        files[-1].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    data = [f"--{split}={file}" for split in ("train", "valid") for file in files]
    sets = ["--set", 'task.tags=["deu_Latn", "eng_Latn"]', "--set", "decode.beam=1", "--set", "train.metric=chrf"]
    run = tmp_path / "run"
    status, _, err = command("train", "--from", models[0], *data, *sets, "--steps", 1, "--out", run)
    assert status == 0, err
    end = next(one for one in reversed(read_log(run / "log.jsonl")) if one["kind"] == "end")
    status, out, err = command("evaluate", run, "--split", "valid")
    assert status == 0, err
    scores = {line.split(" = ")[0]: float(line.split(" = ")[1].split()[0]) for line in out.splitlines()}
    assert scores["loss"] == pytest.approx(end["loss"], abs=1e-4)
    assert scores["chrf"] == pytest.approx(end["chrf"], abs=1e-3)
    assert not math.isclose(scores["loss"], _loss_without_tag(load(run), files), abs_tol=1e-3)
    tuned, chosen = load(run), {"source_language": "deu_Latn", "target_language": "eng_Latn"}
    assert tuned.translate(TEXTS, max_length=9) == tuned.translate(TEXTS, max_length=9, **chosen)
    assert tuned.generate(TEXTS[0], temperature=0, max_length=9) == tuned.translate(TEXTS[:1], max_length=9)[0]
    other = tuned.translate(TEXTS, max_length=9, target_language="deu_Latn")
    assert other != tuned.translate(TEXTS, max_length=9)


def _loss_without_tag(tuned: Pipeline, files: list[Path]) -> float:
    plain = replace(tuned, codec=replace(tuned.codec, prefix=()))
    scored = plain.score(list(zip(*(file.read_text(encoding="utf-8").splitlines() for file in files), strict=True)))
    return -sum(one.logprob for one in scored) / sum(one.tokens for one in scored)
