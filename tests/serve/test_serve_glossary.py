"""Glossaries of requests and of the server, and prefixes: the texts are in the translations, and limits hold."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from fastapi.testclient import TestClient
from openai import OpenAI
from serve_folders import language_model, translator
from serve_process import process
from test_serve_reload import Log

from allyouneed.cli.serve import command
from allyouneed.errors import ConfigError
from allyouneed.serve import ServeConfig, create_app, open_models
from allyouneed.serve.setup import Source

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


# --- the glossary of a server ----------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def translated(url: str, q: str, **more: Any) -> str:
    body = {"q": q, "source": "en", "target": "de", **more}
    return str(httpx.post(f"{url}/translate", json=body, timeout=300).json()["translatedText"])


def test_all_endpoints_use_the_glossary_of_the_server(tmp_path: Path) -> None:
    """Several models, terms of a request first, streams with alternatives as the page reads them, a reload."""
    folder, terms = translator(tmp_path, "numbers", beam=2), tmp_path / "terms.tsv"
    plain = language_model(tmp_path)
    terms.write_text("two\tzwei\nnine\n", encoding="utf-8")
    with process(str(folder), str(plain), "--glossary", f"numbers-de={terms}") as (server, host, port):
        url, log = f"http://{host}:{port}", Log(server)
        assert "zwei" in words(translated(url, "one two"))
        found = words(translated(url, "two nine", glossary=[["two", "drei"]]))
        assert "drei" in found
        assert "zwei" not in found
        assert "nine" in found
        client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=300)
        whole = client.completions.create(model="numbers-de", prompt=["two", "one", "one two"], n=2, temperature=0)
        texts = [choice.text for choice in sorted(whole.choices, key=lambda choice: choice.index)]
        assert all("zwei" in words(texts[place]) for place in (0, 1, 4))  # 5 reaches the maximum length
        assert texts[0] != texts[1]  # the two best ones
        assert texts[0] == translated(url, "two")
        free = client.completions.create(model="numbers-de", prompt="one", temperature=0, logprobs=2)
        assert [free.choices[0].text] * 2 == texts[2:4]
        parts = list(client.completions.create(model="numbers-de", prompt="two", stream=True, logprobs=2))
        assert "".join(part.choices[0].text for part in parts if part.choices) == texts[0]
        logprobs = [part.choices[0].logprobs for part in parts if part.choices and part.choices[0].logprobs]
        values = [value for one in logprobs for value in one.token_logprobs or []]
        assert len(values) == len(texts[0])  # a token is a letter
        assert all(value < 0 for value in values if value is not None)
        short = client.completions.create(model="numbers-de", prompt="two", max_tokens=3).choices[0]
        assert (short.text, short.finish_reason) == (texts[0][:3], "length")
        message: Any = [{"role": "user", "content": "two"}]
        answer = client.chat.completions.create(model="numbers-de", messages=message)
        assert answer.choices[0].message.content == texts[0]
        terms.write_text("two\tsechs\n", encoding="utf-8")
        server.send_signal(signal.SIGHUP)
        log.wait("loaded numbers-de")
        assert "sechs" in words(translated(url, "two"))
        terms.write_text("two\t\n", encoding="utf-8")
        server.send_signal(signal.SIGHUP)
        log.wait("the model numbers-de keeps its glossary")
        assert any("line 1: an empty term" in line for line in log.lines)
        assert "sechs" in words(translated(url, "two"))


@pytest.mark.parametrize(
    ("content", "given", "words"),
    [
        ("two\t\n", "{}", "line 1: an empty term"),
        ("two\t₿\n", "{}", "'₿' has characters or words that"),
        (None, "{}", "terms.tsv"),
        ("two\tzwei\n", "other={}", "other="),
    ],
)
def test_a_bad_glossary_is_one_error_at_the_start(tmp_path: Path, content: str | None, given: str, words: str) -> None:
    folder, terms = translator(tmp_path, "numbers"), tmp_path / "terms.tsv"
    if content is not None:
        terms.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        command([str(folder)], glossary=[given.format(terms)], port=0)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_glossary_needs_a_model_that_can_use_it(tmp_path: Path) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("two\tzwei\n", encoding="utf-8")
    models = [str(translator(tmp_path, "numbers")), str(language_model(tmp_path))]
    with pytest.raises(ConfigError, match="which of the 2 models"):
        Source(models=models, glossaries=[str(terms)]).read()
    for some in (models, models[:1]):
        with pytest.raises(ConfigError, match="no model is named 'languag'; the models are"):
            Source(models=some, glossaries=[f"languag={terms}"]).read()
    with pytest.raises(ConfigError, match="is for models that translate"):
        Source(models=models, glossaries=[f"language={terms}"]).read().open("language")
    file = tmp_path / "serve.toml"
    entry = {"folder": models[0], "glossary": "terms.tsv"}
    file.write_text("[models]\nn = {" + ", ".join(f"{key} = {json.dumps(one)}" for key, one in entry.items()) + "}\n")
    served = Source(str(file)).read().open("n")
    assert served.terms is not None
    assert served.terms.glossary.targets() == ["zwei"]
