"""`serve --languages` of a multilingual model: translations begin with the tag of the target language."""

from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from serve_folders import translator

from allyouneed.config import parse
from allyouneed.decode import SearchConfig, translate
from allyouneed.errors import ConfigError
from allyouneed.folder import load_folder, save_folder
from allyouneed.pipeline import load
from allyouneed.serve import ServeConfig, create_app, open_models
from allyouneed.text.specials import EOS
from allyouneed.training import Recipe

TEXTS, TARGETS = ["one", "twenty-two"], ["eins", "zwei"]
TAGS = {"eng_Latn": 9, "deu_Latn": 10, "fra_Latn": 11}
LANGUAGES = {"source_language": "deu_Latn", "target_language": "fra_Latn"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A random model whose sources begin with the tag of a language."""
    bundle = load_folder(translator(tmp_path, "numbers"))
    codec = replace(bundle.codec, tags=TAGS, frame=((TAGS["eng_Latn"],), (EOS,)))
    return save_folder(tmp_path / "tagged", bundle.model, codec, parse(Recipe, bundle.recipe), "")


def test_translations_begin_with_the_tag(folder: Path) -> None:
    bundle = load_folder(folder)
    pairs = {"de": ("eng_Latn", "deu_Latn"), "fr": ("deu_Latn", "fra_Latn")}
    served = open_models([f"{name}={folder}" for name in pairs], pairs)
    found = []
    with TestClient(create_app(ServeConfig(), served), base_url="http://localhost") as client:
        for name, (source, target) in pairs.items():
            codec = bundle.codec.in_languages(source, target)
            ranked = translate(bundle.model, codec, TEXTS, SearchConfig(beam=1))
            right = [best[0].text for best in ranked]
            answer = client.post("/translate", json={"q": TEXTS, "source": source, "target": target}).json()
            assert answer["translatedText"] == right
            body = {"model": name, "prompt": TEXTS, "temperature": 0}
            completed = client.post("/v1/completions", json=body).json()["choices"]
            assert [choice["text"] for choice in completed] == right
            found.append(right)
    assert found[0] != found[1]


def test_unknown_languages_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="tagged: target language: unknown name 'de'; 3 are known, such as deu_Latn"):
        open_models([str(folder)], {"tagged": ("eng_Latn", "de")})


def test_scores_and_ctranslate2_have_the_tag_too(folder: Path) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: pip install 'allyouneed[ct2]'")
    pair = {"tagged": ("deu_Latn", "fra_Latn")}
    answers = []
    for ctranslate2 in (False, True):
        served = open_models([str(folder)], pair, ctranslate2=ctranslate2)
        with TestClient(create_app(ServeConfig(), served), base_url="http://localhost") as client:
            body = {"q": TEXTS, "source": "deu_Latn", "target": "fra_Latn"}
            found = client.post("/translate", json=body).json()["translatedText"]
            asked = {"model": "tagged", "text": TEXTS, "target": TARGETS}
            scores = client.post("/score", json=asked).json()["scores"]
            answers.append((found, [one["logprob"] for one in scores]))
    assert answers[0][0] == answers[1][0]
    assert answers[0][1] == pytest.approx(answers[1][1], abs=1e-4)
    without = load(folder).score(list(zip(TEXTS, TARGETS, strict=True)))
    assert answers[0][1] != pytest.approx([one.logprob for one in without], abs=1e-3)
    right = load(folder).score(list(zip(TEXTS, TARGETS, strict=True)), **LANGUAGES)
    assert answers[0][1] == pytest.approx([one.logprob for one in right], abs=1e-4)
