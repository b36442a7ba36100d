"""/v1/embeddings of an imported encoder: transformers' states, averaged over the attention mask, are the oracle."""

import sys
from pathlib import Path

import hf_folders as their
import openai
import pytest
import torch
import transformers

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
