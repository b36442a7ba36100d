"""/v1/embeddings of an imported encoder: transformers' states, averaged over the attention mask, are the oracle."""

import json
import sys
from pathlib import Path
from typing import Any

import hf_folders as their
import numpy as np
import openai
import pyarrow.parquet
import pytest
import torch
import transformers

from allyouneed.cli import run
from allyouneed.interop.hf.load import import_folder

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from serve_folders import running

pytestmark = pytest.mark.no_shapes


@pytest.mark.parametrize("kind", ["Bert", "Longformer"])
def test_vectors_are_means_of_their_states(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(1)
    folder, model = their.encoder(tmp_path / "theirs", kind, "Model")
    import_folder(folder, tmp_path / "ours")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]" if kind == "Bert" else "<pad>"
    )
    batch = tokenizer(their.SENTENCES, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = model(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    weights = batch["attention_mask"].unsqueeze(-1).float()
    wanted = torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=1)
    with running([tmp_path / "ours"]) as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        found = client.embeddings.create(model="ours", input=their.SENTENCES)
        assert found.usage.prompt_tokens == int(batch["attention_mask"].sum())
        for one, right in zip(found.data, wanted, strict=True):
            assert one.embedding == pytest.approx(right.tolist(), abs=1e-4)
        with pytest.raises(openai.BadRequestError, match=r"more than 6[46] tokens"):
            client.embeddings.create(model="ours", input="cat " * 100)


def their_vectors(folder: Path, model: Any, texts: list[str], pool: str, length: int) -> torch.Tensor:
    """Return transformers' states of truncated texts, pooled but not normalised."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]", model_max_length=length
    )
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        states = model(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    weights = batch["attention_mask"].unsqueeze(-1).float()
    if pool == "mean":
        return (states * weights).sum(1) / weights.sum(1)
    ends = batch["attention_mask"].sum(1) - 1 if pool == "last" else torch.zeros(len(texts), dtype=torch.long)
    return states[torch.arange(len(texts)), ends]


def test_embed_equals_truncated_texts_of_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each pool and each format, on texts of which two are longer than the window."""
    torch.manual_seed(2)
    folder, model = their.encoder(tmp_path / "theirs", "Bert", "Model")
    import_folder(folder, tmp_path / "ours")
    texts = [*their.SENTENCES, "the cat sat " * 30, "", "dog " * 200]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    base = ["embed", str(tmp_path / "ours"), str(tmp_path / "texts.txt")]

    def embed(*options: str) -> tuple[str, str]:
        status = run([*base, *options])
        found = capsys.readouterr()
        assert status == 0, found.err
        return found.out, found.err

    for pool in ("mean", "cls", "last"):
        right = their_vectors(folder, model, texts, pool, model.config.max_position_embeddings)
        out, err = embed("--pool", pool)
        assert f"of {len(texts)} texts, 2 had more tokens than are read and were truncated: line " in err
        found = torch.tensor([json.loads(line) for line in out.splitlines()])
        torch.testing.assert_close(found, torch.nn.functional.normalize(right, dim=1), rtol=0, atol=1e-5)
    right = their_vectors(folder, model, texts, "mean", 10)
    for name in ("vectors.npy", "vectors.parquet", "vectors.jsonl"):
        out, _ = embed("--no-normalize", "--max-length", "10", "--out", str(tmp_path / name))
        assert out == ""
    found = torch.from_numpy(np.load(tmp_path / "vectors.npy"))
    torch.testing.assert_close(found, right, rtol=0, atol=1e-4)
    rows = pyarrow.parquet.read_table(tmp_path / "vectors.parquet")["vector"].to_pylist()
    assert rows == found.tolist()
    assert [json.loads(line) for line in (tmp_path / "vectors.jsonl").read_text().splitlines()] == rows
    assert not list(tmp_path.glob("*.part"))
    assert run([*base, "--out", str(tmp_path / "vectors.txt")]) != 0
    assert "should end with .jsonl, .npy or .parquet" in capsys.readouterr().err
    assert run([*base, "--max-length", "2"]) != 0
    assert "max_length=2: 2 of them are special tokens" in capsys.readouterr().err
