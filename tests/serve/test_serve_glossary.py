"""`/translate` with a glossary and a prefix: the texts are in the translations, and limits hold."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from serve_folders import translator

from allyouneed.serve import ServeConfig, create_app, open_models

pytestmark = pytest.mark.no_shapes


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = translator(tmp_path_factory.mktemp("glossary"), "numbers", beam=2)
    app = create_app(ServeConfig(max_terms=3), open_models([str(folder)]))
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def post(client: TestClient, q: Any, **more: Any) -> tuple[int, Any]:
    response = client.post("/translate", json={"q": q, "source": "en", "target": "de", **more})
    return response.status_code, response.json()


def test_terms_and_a_prefix_are_in_the_translations(client: TestClient) -> None:
    texts = ["one two", "a Two hundred\nnine", "nine"]
    status, found = post(client, texts, glossary=[["two", "zwei"], ["nine"]], prefix="hu")
    assert status == 200
    one, two, three = found["translatedText"]
    assert "zwei" in one.split()
    first, second = two.split("\n")
    assert "zwei" in first.split()
    assert "nine" in second.split()
    assert "nine" in three.split()
    assert all(text.startswith("hu") for text in (one, first, three))


def test_texts_without_terms_are_translated_as_ever(client: TestClient) -> None:
    assert post(client, "one", glossary=[["two", "zwei"]]) == post(client, "one")


def test_pages_use_the_glossary(client: TestClient) -> None:
    status, found = post(client, "<p>one <b>two</b></p>", format="html", glossary=[["one two", "drei"]])
    assert status == 200
    assert "drei" in found["translatedText"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"glossary": [["one", "a"]] * 4}, "glossary: 4 terms; at most 3 in one request"),
        ({"glossary": "one"}, "glossary: should be a list of [source term, target], in JSON"),
        ({"glossary": [[]]}, "glossary: should be a list of [source term, target], in JSON"),
        ({"glossary": [["one", ""]]}, "glossary: term 1: an empty term"),
        ({"glossary": [["one", "a"], ["One", "b"]]}, "glossary: term 2: 'One' has other targets before"),
        ({"glossary": [["two", "₿"]]}, "glossary: '₿' cannot be written by the model"),
        ({"prefix": "₿"}, "prefix: '₿' cannot be written by the model"),
        ({"prefix": "a" * 2000}, "prefix: a text of more than 1,024 tokens"),
        ({"prefix": "a", "format": "html"}, "prefix: is for format=text"),
    ],
)
def test_bad_fields_are_refused(client: TestClient, more: dict[str, Any], message: str) -> None:
    status, found = post(client, "two", **more)
    assert (status, found["error"][: len(message)]) == (400, message)


def test_ctranslate2_refuses(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    folder = translator(tmp_path, "numbers", beam=2)
    app = create_app(ServeConfig(), open_models([str(folder)], ctranslate2=True))
    with TestClient(app, base_url="http://localhost") as client:
        status, found = post(client, "two", glossary=[["two", "zwei"]])
    assert (status, found["error"]) == (
        400,
        "glossary, prefix: not supported by the engine ctranslate2 of this server",
    )
