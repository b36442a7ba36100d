"""LibreTranslate's endpoint translates every sentence of a line, and what `allyouneed.load` does."""

from pathlib import Path
from typing import Any

import torch
from libretranslatepy import LibreTranslateAPI
from serve_folders import TRANSLATORS, running

import allyouneed
from allyouneed.config import parse
from allyouneed.folder import save_folder
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.text.tokenizer import of_symbols
from allyouneed.training import Recipe

LETTERS = of_symbols("ADTYadeghimnorstuwy .!", "characters")
TEXT = "A dog runs. Two men sit!  They wait.\nNo.\n"


def test_every_sentence_comes_back(tmp_path: Path) -> None:
    torch.manual_seed(3)
    task: dict[str, Any] = {"type": "translation", "train": ["t.en", "t.de"], "valid": ["v.en", "v.de"]}
    recipe = parse(Recipe, {"task": task, "model": TRANSLATORS["numbers"], "decode": {"beam": 1, "max_length": 8}})
    model = recipe.model.build(Sizes(LETTERS.size, LETTERS.size))
    with torch.no_grad():
        model.head.weight_VD.mul_(3.0)
    folder = save_folder(tmp_path / "captions", model, Codec(LETTERS, LETTERS, sentences=1), recipe, "")
    one = allyouneed.load(folder).translate(["A dog runs.", "Two men sit!", "They wait.", "No."])
    with running([folder], queue=8, client_queue=5) as (url, _):
        found = LibreTranslateAPI(url + "/").translate(TEXT, "en", "de")
        many = LibreTranslateAPI(url + "/").translate(" ".join(["No."] * 12), "en", "de")
    assert many == " ".join([one[3]] * 12)  # more sentences than the queue holds of a client
    assert found == f"{one[0]} {one[1]}  {one[2]}\n{one[3]}\n"
