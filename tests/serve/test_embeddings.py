"""/v1/embeddings by OpenAI's client, /tokenize and /detokenize."""

import base64
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
import torch
from serve_folders import language_model, running

from allyouneed.decode.embed import embed
from allyouneed.serve.backend import Backend

pytestmark = pytest.mark.no_shapes
send = httpx.post
TEXTS = ["two dogs", "seven", "one " * 60]


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("encoding", [openai.omit, "float", "base64"])
@pytest.mark.parametrize("model", ["numbers-de", "lstm-fr", "language"])
def test_embeddings(client: openai.OpenAI, server: tuple[str, Backend], model: str, encoding: Any) -> None:
    bundle = server[1].models[model].bundle
    codec = bundle.codec
    ids = codec.encode_sources(TEXTS) if codec.source is not None else codec.target.encode_batch(TEXTS)
    wanted = embed(bundle.model, codec, ids)
    found = client.embeddings.create(model=model, input=TEXTS, encoding_format=encoding)
    assert [one.index for one in found.data] == [0, 1, 2]
    for one, vector_D in zip(found.data, wanted, strict=True):
        vector = one.embedding
        if encoding == "base64":  # the client decodes only what it asked for by itself
            vector = torch.frombuffer(bytearray(base64.b64decode(vector)), dtype=torch.float32).tolist()
        assert vector == pytest.approx(vector_D.tolist(), abs=1e-5)
        assert sum(value * value for value in vector) == pytest.approx(1)
    assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, ids))
    single = client.embeddings.create(model=model, input=TEXTS[0])
    assert single.data[0].embedding == pytest.approx(wanted[0].tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"input": ""}, "input: an empty text"),
        ({"input": []}, "input: an empty text"),
        ({"input": ["x", ""]}, "input: an empty text"),
        ({"input": [1, 2]}, "token ids are not supported"),
        ({"input": "x", "dimensions": 8}, "dimensions: not supported here"),
        ({"input": "x" * 2000}, "more than 1,024 tokens; split it, or send truncate"),
    ],
)
def test_refusals(client: openai.OpenAI, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        client.embeddings.create(model="numbers-de", **settings)


def test_truncation_is_stated(client: openai.OpenAI) -> None:
    more = {"extra_body": {"truncate": True}}
    found = client.embeddings.create(model="numbers-de", input=["a" * 2000, "ab"], **more)
    assert found.data[0].truncated == 2000 - 1023  # EOS is one of 1,024
    assert not hasattr(found.data[1], "truncated")
    whole = client.embeddings.create(model="numbers-de", input="a" * 1023)
    assert found.data[0].embedding == pytest.approx(whole.data[0].embedding, abs=1e-5)
    assert found.usage.prompt_tokens == 1024 + 3


def test_the_last_learned_position_bounds_a_text(tmp_path: Path) -> None:
    folder = language_model(tmp_path, "characters", positions={"type": "learned", "max_length": 16})
    with running([folder]) as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        assert client.embeddings.create(model="language", input="t" * 15).data
        with pytest.raises(openai.BadRequestError, match="more than 15 tokens"):
            client.embeddings.create(model="language", input="t" * 16)
        found = client.embeddings.create(model="language", input="t" * 16, extra_body={"truncate": True})
        assert found.data[0].truncated == 1


def test_compiled_programs_have_vectors_too(client: openai.OpenAI) -> None:
    assert client.embeddings.create(model="reverse", input="abcd").data[0].embedding


def test_tokenize(url: str, server: tuple[str, Backend]) -> None:
    target = server[1].models["language"].bundle.codec.target
    assert target is not None
    found = send(f"{url}/tokenize", json={"model": "language", "text": "to be 🙂"}).json()
    (text,) = found["texts"]
    assert text["ids"] == target.encode("to be 🙂")
    assert text["count"] == len(text["ids"]) == len(text["tokens"])
    assert [target.vocabulary[token] for token in text["tokens"]] == text["ids"]
    back = send(f"{url}/detokenize", json={"model": "language", "ids": text["ids"]}).json()
    assert back == {"model": "language", "side": "target", "text": "to be 🙂"}
    found = send(f"{url}/tokenize", json={"model": "numbers-de", "text": ["ab", ""]}).json()
    assert found["side"] == "source"
    assert [text["tokens"] for text in found["texts"]] == [["a", "b", "< eos >"], ["< eos >"]]
    found = send(f"{url}/tokenize", json={"model": "numbers-de", "text": "a" * 2000, "side": "target"}).json()
    assert found["texts"][0]["count"] == 2000  # counting needs no split


def test_tokenize_refuses(url: str) -> None:
    def status(path: str, **body: Any) -> int:
        return send(url + path, json=body).status_code

    assert status("/tokenize", model="other", text="x") == 404
    assert status("/tokenize", model="language", text="x", side="source") == 400
    assert status("/tokenize", model="language", text="x" * 30000) == 400
    assert status("/detokenize", model="language", ids=[10**6]) == 400
    assert status("/detokenize", model="language", ids=["x"]) == 400


def test_keys(folders: list[Path]) -> None:
    chat = [{"role": "user", "content": "x"}]
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/chat/completions", {"messages": chat, "max_tokens": 2}),
        ("/tokenize", {"text": "x"}),
        ("/detokenize", {"ids": [4]}),
    ]
    with running([folders[3]], keys=["open-sesame"]) as (url, _):
        for path, body in requests:
            tree = {"model": "language", **body}
            assert send(url + path, json=tree).status_code == 401
            assert send(url + path, json=tree, headers={"Authorization": "Bearer wrong"}).status_code == 401
            right = {"Authorization": "Bearer open-sesame"}
            assert send(url + path, json=tree, headers=right).status_code == 200
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="open-sesame")
        assert client.embeddings.create(model="language", input="x").data
        assert client.chat.completions.create(model="language", messages=chat, max_tokens=2).choices
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{url}/v1", api_key="wrong").embeddings.create(model="language", input="x")
