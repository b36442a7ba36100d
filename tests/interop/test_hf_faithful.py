"""Imports begin and end texts as the model's own tokenizer does, and accept config fields that change nothing."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import hf_folders as their
import openai
import pytest
import torch
from tokenizers import Tokenizer

from allyouneed.decode import SearchConfig
from allyouneed.evaluation.measure import evaluate_files
from allyouneed.folder import load_folder
from allyouneed.inspection.inspect import inspect_text
from allyouneed.interop.hf.export import export_folder
from allyouneed.interop.hf.load import import_folder, read_folder
from allyouneed.pipeline import load

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from serve_folders import running

pytestmark = [
    pytest.mark.no_shapes,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
PROMPTS = ["the cat", "a", ""]
NEW = 8


def greedy(theirs: Any, folder: Path, prompt: str, **more: Any) -> list[int]:
    """Return the ids that transformers generates, without the prompt; an empty prompt is the begin token."""
    given = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(prompt).ids or [theirs.config.bos_token_id]
    ids = torch.tensor([given])
    more = {"pad_token_id": 0, "max_new_tokens": NEW, "do_sample": False, **more}
    found: list[int] = theirs.generate(ids, attention_mask=torch.ones_like(ids), **more)[0, len(given) :].tolist()
    return found


def text_of(folder: Path, ids: list[int], prompt: str) -> str:
    """Return the text of ids after a prompt."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    before = tokenizer.encode(prompt, add_special_tokens=False).ids
    return str(tokenizer.decode([*before, *ids]))[len(tokenizer.decode(before)) :]


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Path]:
    """Return a folder of theirs, its model and the imported folder: without and with BOS before a text."""
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp(request.param)
    make = {"gpt2": their.gpt2, "llama": their.llama}[request.param]
    folder, theirs = make(path / "theirs")
    import_folder(folder, path / "ours")
    return folder, theirs, path / "ours"


def test_texts_begin_as_in_transformers(pair: tuple[Path, Any, Path]) -> None:
    folder, theirs, ours = pair
    pipeline = load(ours)
    assert pipeline.codec.bos is (theirs.config.model_type == "llama")
    never = [[theirs.config.bos_token_id]] if pipeline.codec.bos else None
    for prompt in PROMPTS:
        right = text_of(folder, greedy(theirs, folder, prompt, bad_words_ids=never), prompt)
        assert pipeline.generate(prompt, temperature=0, max_length=NEW) == right
        found = inspect_text(load_folder(ours), prompt, new_tokens=NEW)
        assert found.answer == right


def test_probabilities_begin_as_in_transformers(pair: tuple[Path, Any, Path], tmp_path: Path) -> None:
    """Without BOS the first token is read, but has no probability."""
    folder, theirs, ours = pair
    text = "the cat sat on the mat and looked at the dog"
    whole = torch.tensor([Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids])
    with torch.no_grad():
        right = theirs(whole, labels=whole).loss
    pipeline = load(ours)
    (found,) = pipeline.score([text])
    assert found.tokens == whole.shape[1] - 1
    assert -found.logprob / found.tokens == pytest.approx(float(right), abs=1e-4)
    assert pipeline.score(["a"])[0].tokens == int(pipeline.codec.bos)
    (tmp_path / "text.txt").write_text(text)
    scores = evaluate_files(load_folder(ours), [str(tmp_path / "text.txt")], SearchConfig(), print)
    (perplexity,) = (one.value for one in scores if one.name == "perplexity")
    assert math.log(perplexity) == pytest.approx(float(right), abs=1e-4)


def test_completions_begin_as_in_transformers(pair: tuple[Path, Any, Path]) -> None:
    folder, theirs, ours = pair
    codec = load_folder(ours).codec
    never = [[theirs.config.bos_token_id]] if codec.bos else None
    with running([ours]) as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)
        for prompt in PROMPTS[:2]:
            right = text_of(folder, greedy(theirs, folder, prompt, bad_words_ids=never), prompt)
            for stream in (False, True):
                settings: dict[str, Any] = {"model": "ours", "prompt": prompt, "max_tokens": NEW, "temperature": 0}
                answer = client.completions.create(**settings, stream=stream)
                parts = [part.choices[0].text for part in answer] if stream else [answer.choices[0].text]
                assert "".join(parts) == right
        echoed = client.completions.create(model="ours", prompt="the cat", max_tokens=1, echo=True, logprobs=1)
        values = echoed.choices[0].logprobs.token_logprobs
        assert (values[0] is None) is not codec.bos
        assert None not in values[1:]


def test_any_of_several_ends_stops_a_text(tmp_path: Path) -> None:
    torch.manual_seed(5)
    folder, theirs = their.llama(tmp_path / "theirs")
    ids = greedy(theirs, folder, "the cat", bad_words_ids=[[1]])
    place = next(n for n, token in enumerate(ids) if n and token not in ids[:n])
    ends = [2, ids[place]]
    their.change_config(folder, eos_token_id=ends)
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": ends}))
    import_folder(folder, tmp_path / "ours")
    right = text_of(folder, ids[:place], "the cat")
    pipeline = load(tmp_path / "ours")
    assert pipeline.generate("the cat", temperature=0, max_length=NEW) == right
    assert pipeline.generate("the cat", temperature=0, max_length=NEW, n=2) == [right] * 2
    with running([tmp_path / "ours"]) as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)
        (choice,) = client.completions.create(model="ours", prompt="the cat", max_tokens=NEW, temperature=0).choices
        assert (choice.text, choice.finish_reason) == (right, "stop")


HARMLESS: dict[str, Any] = {
    "_model_name_or_path": "somewhere",
    "is_llama_config": True,
    "rope_interleaved": False,
    "rope_scaling": None,
    "output_past": True,
    "n_inner": None,
    "pruned_heads": {},
    "transformers.js_config": {"dtype": "q4"},
    "a_field_of_the_future": None,
}


def test_fields_that_change_nothing_are_accepted(tmp_path: Path) -> None:
    folder, _ = their.llama(tmp_path / "theirs")
    before = read_folder(folder)
    their.change_config(folder, **HARMLESS)
    settings = {"bos_token_id": 1, "eos_token_id": 2, "assistant_confidence_threshold": 0.4}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    after = read_folder(folder)
    assert after.recipe == before.recipe
    assert after.notes == ["settings of generate that are not imported: assistant_confidence_threshold=0.4"]


@pytest.mark.parametrize("old", [False, True])
def test_scaled_positions_are_exported(tmp_path: Path, old: bool) -> None:
    """`rope_scaling` of earlier versions and `rope_parameters` mean the same, and an export has them again."""
    scaling: dict[str, Any] = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 16}
    folder, theirs = their.llama(tmp_path / "theirs", rope_parameters={**scaling, "rope_theta": 5000.0})
    if old:
        their.change_config(folder, rope_parameters=None, rope_scaling=scaling, rope_theta=5000.0)
    import_folder(folder, tmp_path / "ours")
    export_folder(load_folder(tmp_path / "ours"), tmp_path / "again")
    again = type(theirs).from_pretrained(tmp_path / "again").eval()
    ids = torch.arange(40)[None] + 5
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, theirs(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("make", [their.marian, their.bart, their.m2m_100, their.t5, their.gpt2, their.bloom])
def test_a_model_without_its_head_has_its_embedding_as_head(tmp_path: Path, make: Any) -> None:
    """`BartModel` and others have no output projection; it is their embedding, and the bias is zero."""
    folder, whole = make(tmp_path / "theirs")
    if hasattr(whole, "final_logits_bias"):
        whole.final_logits_bias.zero_()
    whole.save_pretrained(folder)
    right = read_folder(folder).model.state_dict()
    base = whole.base_model if whole.base_model is not whole else their.transformers.T5Model.from_pretrained(folder)
    base.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["architectures"][0].endswith("Model")
    found = read_folder(folder).model.state_dict()
    assert found.keys() == right.keys()
    assert all(torch.equal(found[name], right[name]) for name in right)
