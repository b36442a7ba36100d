"""`serve --shortlist`: it restricts translations to likely words and changes nothing else."""

from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient
from serve_folders import language_model, translator

from allyouneed.decode import translate
from allyouneed.errors import ConfigError
from allyouneed.folder import add_shortlist, load_folder
from allyouneed.serve import ServeConfig, create_app, open_models
from allyouneed.shortlist.table import SPECIALS, Shortlist

TEXTS = ["one", "twenty-two", "a", "two hundred"]


def with_shortlist(folder: Path) -> Path:
    """Add a shortlist in which each letter allows itself and the next one."""
    bundle = load_folder(folder)
    source = bundle.codec.source
    assert source is not None
    lists = [[word, word + 1] if SPECIALS <= word < source.size - 1 else [] for word in range(source.size)]
    ends = torch.tensor([len(words) for words in lists]).cumsum(0)
    flat = torch.tensor([word for words in lists for word in words])
    add_shortlist(bundle, Shortlist(torch.arange(SPECIALS), flat, ends))
    return folder


def test_translations_use_the_shortlist(tmp_path: Path) -> None:
    folder = with_shortlist(translator(tmp_path, "numbers", beam=2))
    bundle, served = load_folder(folder), open_models([str(folder)], shortlist=True)
    (one,) = served.values()
    wanted = translate(bundle.model, bundle.codec, TEXTS, one.search, shortlist=bundle.shortlist)
    with TestClient(create_app(ServeConfig(), served), base_url="http://localhost") as client:
        answer = client.post("/translate", json={"q": TEXTS, "source": "en", "target": "de"}).json()
    assert answer["translatedText"] == [best[0].text for best in wanted]
    without = translate(bundle.model, bundle.codec, TEXTS, one.search)
    assert [best[0].text for best in wanted] != [best[0].text for best in without]


def test_translators_need_a_shortlist_and_other_models_do_not(tmp_path: Path) -> None:
    folder, other = translator(tmp_path, "numbers"), language_model(tmp_path)
    with pytest.raises(ConfigError, match="has no shortlist; `allyouneed shortlist"):
        open_models([str(folder)], shortlist=True)
    served = open_models([str(with_shortlist(folder)), str(other)], shortlist=True)
    assert [one.shortlist is not None for one in served.values()] == [True, False]
    assert all(one.shortlist is None for one in open_models([str(folder)]).values())


def test_ctranslate2_refuses_shortlists(tmp_path: Path) -> None:
    folder = with_shortlist(translator(tmp_path, "numbers"))
    with pytest.raises(ConfigError, match="other texts would change a result"):
        open_models([str(folder)], ctranslate2=True, shortlist=True)
