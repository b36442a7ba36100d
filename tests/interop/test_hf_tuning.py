"""Import, tune, export: an imported model learns in its own ids, and transformers reads what it has become."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import hf_folders as their
import pytest
import spm_folders
import torch
import transformers

from allyouneed import load
from allyouneed.cli import run
from allyouneed.decode import Answer
from allyouneed.decode.rerank import Reverse, rerank
from allyouneed.folder import load_folder
from allyouneed.interop.hf.export import export_folder
from allyouneed.interop.hf.load import import_folder, read_folder
from allyouneed.text.specials import BOS, EOS
from allyouneed.weights import model_tensors

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from tuning_runs import OTHER, first_loss, write_labels, write_pairs

pytestmark = pytest.mark.no_shapes
STEPS = ["--steps", "2", "--set", "train.evaluate_every=0.5"]


def tuned(folder: Path, *arguments: object) -> Path:
    """Import the folder `theirs`, tune it and export it; return the exported folder."""
    import_folder(folder / "theirs", folder / "ours")
    command = ["train", "--from", folder / "ours", *arguments, *STEPS, "--out", folder / "run"]
    assert run(list(map(str, command))) == 0
    assert run(["export", str(folder / "run"), "--to", "hf", "--out", str(folder / "exported")]) == 0
    old, new = (model_tensors(load_folder(folder / name).model) for name in ("ours", "run"))
    assert any(name not in old or not torch.equal(tensor, old[name]) for name, tensor in new.items())
    return folder / "exported"


def test_one_token_that_begins_and_ends(tmp_path: Path) -> None:
    """BART starts targets with its end token, and learns to generate `<s>` first; two ids here, with equal rows."""
    _, theirs = their.bart(tmp_path / "theirs")
    files = write_pairs(tmp_path, "other", OTHER)
    data = ["--train", files[0], "--train", files[1], "--valid", files[0], "--valid", files[1]]
    exported = tuned(tmp_path, *data, "--set", "train.optimizer.lr=0.05")
    tokenizer: Any = transformers.PreTrainedTokenizerFast(tokenizer_file=str(exported / "tokenizer.json"))
    right, count = 0.0, 0
    for source, target in OTHER:
        ids, labels = (torch.tensor([tokenizer(text).input_ids]) for text in (source, target))
        with torch.no_grad():
            right += float(theirs(ids, labels=labels).loss) * labels.numel()
        count += labels.numel()
    assert first_loss(tmp_path / "run") == pytest.approx(right / count, abs=1e-4)
    bundle, again = load_folder(tmp_path / "run"), read_folder(exported)
    table_VD = model_tensors(bundle.model)["source.weight_VD"]
    assert torch.equal(table_VD[BOS], table_VD[EOS])
    assert not torch.equal(table_VD[EOS], model_tensors(load_folder(tmp_path / "ours").model)["source.weight_VD"][EOS])
    assert all(torch.equal(one, model_tensors(again.model)[n]) for n, one in model_tensors(bundle.model).items())


def test_bart_as_a_reverse_model_and_with_a_prescribed_start(tmp_path: Path) -> None:
    """Its targets begin with `<s>`, which it generates by itself: it has no part in scores, and precedes a start."""
    _, theirs = their.bart(tmp_path / "theirs")
    import_folder(tmp_path / "theirs", tmp_path / "ours")
    pipeline, source = load(tmp_path / "ours"), their.SENTENCES[0]
    tokenizer: Any = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "theirs" / "tokenizer.json"))
    answers = [Answer("a tree", 0.0, -1.0), Answer("the dog", 0.0, -2.0)]
    ranked = rerank([source], [answers], Reverse(pipeline.model, pipeline.codec))[0]
    labels = torch.tensor(tokenizer(source).input_ids)
    for answer in ranked:
        logprobs = theirs(torch.tensor([tokenizer(answer.text).input_ids]), labels=labels[None]).logits.log_softmax(-1)
        right = logprobs[0].gather(1, labels[:, None])[1:].sum()
        assert answer.score == pytest.approx(answer.logprob + float(right.detach()), abs=1e-4)
    read = torch.tensor([tokenizer(source).input_ids])
    start = torch.tensor([[theirs.config.decoder_start_token_id, *tokenizer("a cat").input_ids[:-1]]])
    right = theirs.generate(read, decoder_input_ids=start, max_new_tokens=7, num_beams=1, do_sample=False)[0]
    found = pipeline.translate([source], prefixes=["a cat"], beam=1, max_length=7)
    assert found == [tokenizer.decode(right, skip_special_tokens=True)]


def test_a_masked_model_becomes_a_classifier_of_its_architecture(tmp_path: Path) -> None:
    their.encoder(tmp_path / "theirs", "Nystromformer", "ForMaskedLM")
    file = write_labels(tmp_path, "labels.tsv", "xyz")
    exported = tuned(tmp_path, "--task", "classification", "--train", file, "--valid", file)
    right: Any = transformers.NystromformerForSequenceClassification.from_pretrained(exported).eval()
    bundle = load_folder(tmp_path / "run")
    model: Any = bundle.model
    ids = torch.tensor(transformers.AutoTokenizer.from_pretrained(exported)(["text x 4"]).input_ids)
    with torch.no_grad():
        ours = model.classify(torch.tensor(bundle.codec.encode_sources(["text x 4"])))
        torch.testing.assert_close(ours, right(ids).logits, rtol=0, atol=1e-5)


def test_a_translator_with_sentencepiece(tmp_path: Path) -> None:
    spm_folders.opus(tmp_path / "theirs")
    files = write_pairs(tmp_path, "other", OTHER)
    data = ["--train", files[0], "--train", files[1], "--valid", files[0], "--valid", files[1]]
    exported = tuned(tmp_path, *data, "--set", "train.lora.rank=2")
    right: Any = transformers.MarianMTModel.from_pretrained(exported).eval()
    bundle = load_folder(tmp_path / "run")
    assert bundle.codec.same_ids_as(load_folder(tmp_path / "ours").codec)
    before: Any = transformers.MarianMTModel.from_pretrained(tmp_path / "theirs")
    assert right.config.vocab_size == before.config.vocab_size
    assert right.config.eos_token_id == before.config.eos_token_id


def test_a_language_model(tmp_path: Path) -> None:
    their.gpt2(tmp_path / "theirs")
    (tmp_path / "text.txt").write_text("the dog ran after the cat. " * 30)
    data = ["--train", tmp_path / "text.txt", "--valid", tmp_path / "text.txt", "--set", "task.context=16"]
    exported = tuned(tmp_path, *data, "--set", "task.batch=2")
    right: Any = transformers.GPT2LMHeadModel.from_pretrained(exported).eval()
    ids = torch.tensor([[5, 9, 7, 30]])
    assert right(ids).logits.shape[:2] == (1, 4)


def test_an_encoder_becomes_a_classifier(tmp_path: Path) -> None:
    their.encoder(tmp_path / "theirs", "Bert", "Model")
    file = write_labels(tmp_path, "labels.tsv", "xyz")
    exported = tuned(tmp_path, "--task", "classification", "--train", file, "--valid", file)
    right: Any = transformers.BertForSequenceClassification.from_pretrained(exported).eval()
    assert list(right.config.id2label.values()) == ["x", "y", "z"]
    bundle = load_folder(tmp_path / "run")
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    batch = tokenizer(["text x 4"], return_tensors="pt")
    model: Any = bundle.model
    with torch.no_grad():
        ours = model.classify(torch.tensor(bundle.codec.encode_sources(["text x 4"])))
        torch.testing.assert_close(ours, right(**batch).logits, rtol=0, atol=1e-5)


AS_THEY_WERE: dict[str, Any] = {
    "mistral": their.mistral,
    "opt": their.opt,
    "reformer": their.reformer,
    "led": their.led,
    "pegasus": their.pegasus,
    "llama in bfloat16": partial(their.llama, dtype=torch.bfloat16),
    "RobertaModel": partial(their.encoder, kind="Roberta", head="Model"),
    "XLMRobertaForMaskedLM": partial(their.encoder, kind="XLMRoberta", head="ForMaskedLM"),
    "DistilBertForTokenClassification": partial(their.encoder, kind="DistilBert", head="ForTokenClassification"),
    "RoFormerForMaskedLM": partial(their.encoder, kind="RoFormer", head="ForMaskedLM"),
    "LongformerForSequenceClassification": partial(their.encoder, kind="Longformer", head="ForSequenceClassification"),
    "BigBirdModel": partial(their.encoder, kind="BigBird", head="Model"),
    "FNetModel": partial(their.encoder, kind="FNet", head="Model"),
    "NystromformerForMaskedLM": partial(their.encoder, kind="Nystromformer", head="ForMaskedLM"),
}


@pytest.mark.parametrize("name", AS_THEY_WERE)
def test_imports_are_exported_as_they_were(tmp_path: Path, name: str) -> None:
    """The same class, config and weights, also where our models cannot be exported to that architecture."""
    folder, theirs = AS_THEY_WERE[name](tmp_path / "theirs")
    import_folder(folder, tmp_path / "ours")
    export_folder(load_folder(tmp_path / "ours"), tmp_path / "again")
    old, new = (json.loads((one / "config.json").read_text()) for one in (folder, tmp_path / "again"))
    assert new == old | ({"axial_pos_embds": False} if name == "reformer" else {})
    their.same_vocabulary(folder, tmp_path / "again")
    again: Any = type(theirs).from_pretrained(tmp_path / "again")
    right, unread = theirs.state_dict(), ("embed_positions.weight", "position_embeddings.weight")
    for part, tensor in again.state_dict().items():
        skipped = 2 if part.endswith(unread) and "pos" in part and not torch.equal(tensor, right[part]) else 0
        assert tensor.dtype == right[part].dtype
        if skipped:  # rows that no position reads, or sines
            torch.testing.assert_close(tensor[skipped:], right[part][skipped:], rtol=0, atol=1e-6)
        else:
            assert torch.equal(tensor, right[part]), part
