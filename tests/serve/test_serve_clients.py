"""Requests by real clients: libretranslatepy and openai."""

import threading
from pathlib import Path

import openai
import pytest
from libretranslatepy import LibreTranslateAPI
from serve_folders import running

import allyouneed
from allyouneed.decode import SampleConfig, SearchConfig, sample, translate
from allyouneed.serve.backend import Backend

pytestmark = pytest.mark.no_shapes


@pytest.fixture
def libre(url: str) -> LibreTranslateAPI:
    return LibreTranslateAPI(url + "/")


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def bundle_of(server: tuple[str, Backend], name: str) -> allyouneed.folder.Bundle:  # type: ignore[name-defined]
    return server[1].models[name].bundle


def test_libretranslate(libre: LibreTranslateAPI, server: tuple[str, Backend]) -> None:
    for name, target, beam in (("numbers-de", "de", 1), ("lstm-fr", "fr", 3)):
        bundle = bundle_of(server, name)
        wanted = translate(bundle.model, bundle.codec, ["two dogs"], SearchConfig(beam=beam))[0][0].text
        assert libre.translate("two dogs", "en", target) == wanted
    assert libre.detect("two dogs")[0]["language"] == "en"
    codes = {language["code"]: language for language in libre.languages()}
    assert sorted(codes["en"]["targets"]) == ["de", "es", "fr"]
    assert codes["de"] == {"code": "de", "name": "German", "targets": []}


def test_models(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names == ["numbers-de", "lstm-fr", "bytenet-es", "language", "reverse"]
    assert client.models.retrieve("language").id == "language"
    with pytest.raises(openai.NotFoundError, match="unknown name 'other'"):
        client.models.retrieve("other")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_completions_match_the_library(
    client: openai.OpenAI, server: tuple[str, Backend], stream: bool, temperature: float
) -> None:
    bundle = bundle_of(server, "language")
    target = bundle.codec.target
    assert target is not None
    texts = ["to be", "naïve 🙂"]
    config = SampleConfig(temperature=temperature, top_p=0.9, seed=7, n=2, max_length=12)
    prompts = [target.encode(text) for text in texts]
    found = sample(bundle.model, prompts, config)
    wanted = [
        target.decode([*prompt, *one.ids])[len(text) :]
        for text, prompt, several in zip(texts, prompts, found, strict=True)
        for one in several
    ]
    answer = client.completions.create(
        model="language", prompt=texts, n=2, seed=7, max_tokens=12, temperature=temperature, top_p=0.9, stream=stream
    )
    texts_found = dict.fromkeys(range(4), "")
    finish = {}
    for part in answer if stream else [answer]:
        for choice in part.choices:
            texts_found[choice.index] += choice.text
            finish[choice.index] = choice.finish_reason or finish.get(choice.index)
    assert list(texts_found.values()) == wanted
    assert list(finish.values()) == ["stop" if one.finished else "length" for several in found for one in several]


def test_the_prompt_is_the_source(client: openai.OpenAI, server: tuple[str, Backend]) -> None:
    for name in ("numbers-de", "bytenet-es"):
        bundle = bundle_of(server, name)
        wanted = translate(bundle.model, bundle.codec, ["seven"], SearchConfig(beam=1))[0][0].text
        assert client.completions.create(model=name, prompt="seven", temperature=0).choices[0].text == wanted
    assert client.completions.create(model="reverse", prompt="abcd").choices[0].text == "d c b a"


def test_usage_logprobs_and_echo(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="language", prompt="to be", max_tokens=5, temperature=0, logprobs=3, echo=True, seed=1
    )
    (choice,) = answer.choices
    assert choice.text.startswith("to be")
    assert "".join(choice.logprobs.tokens) == choice.text
    for place, token in zip(choice.logprobs.text_offset, choice.logprobs.tokens, strict=True):
        assert choice.text[place : place + len(token)] == token
    assert answer.usage.completion_tokens == 5
    assert len(choice.logprobs.tokens) == answer.usage.total_tokens
    for logprob, top in zip(choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True):
        assert logprob <= max(top.values()) <= 0
        assert 1 <= len(top) <= 4
    only = client.completions.create(model="language", prompt="to be", max_tokens=0, logprobs=1, echo=True)
    assert only.choices[0].text == "to be"
    parts = list(
        client.completions.create(
            model="language",
            prompt="to be",
            max_tokens=5,
            temperature=0,
            logprobs=3,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert parts[-1].choices == []
    assert parts[-1].usage.completion_tokens == 5
    tokens = [token for part in parts[:-1] for token in part.choices[0].logprobs.tokens]
    assert "".join(tokens) == choice.text[len("to be") :]
    offsets = [place for part in parts[:-1] for place in part.choices[0].logprobs.text_offset]
    assert offsets == [place - len("to be") for place in choice.logprobs.text_offset[-5:]]


@pytest.mark.parametrize("stream", [False, True])
def test_stop(client: openai.OpenAI, stream: bool) -> None:
    settings = {"model": "language", "prompt": "to be", "max_tokens": 40, "temperature": 1, "seed": 3}
    whole = client.completions.create(**settings).choices[0].text
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    parts = client.completions.create(**settings, stop=["never generated", stop], stream=stream)
    choices = [choice for part in (parts if stream else [parts]) for choice in part.choices]
    assert "".join(choice.text for choice in choices) == whole[: whole.index(stop)]
    assert choices[-1].finish_reason == "stop"


def test_classifiers_obey_max_tokens_and_stop(client: openai.OpenAI) -> None:
    def complete(**settings: object) -> tuple[str, str, int]:
        answer = client.completions.create(model="reverse", prompt="abcd", **settings)
        (choice,) = answer.choices
        return choice.text, choice.finish_reason, answer.usage.completion_tokens

    assert complete() == complete(max_tokens=4) == ("d c b a", "stop", 4)
    assert complete(max_tokens=2) == ("d c", "length", 2)
    assert complete(max_tokens=0) == ("", "length", 0)
    assert complete(stop=["a", " b"]) == ("d c", "stop", 4)
    assert complete(stop="a", max_tokens=3) == ("d c b", "length", 3)


def test_completions_state_unknown_words(client: openai.OpenAI) -> None:
    settings = {"model": "numbers-de", "temperature": 0}
    assert not hasattr(client.completions.create(prompt="seven", **settings), "unknown")
    assert client.completions.create(prompt="Seven dogs", **settings).unknown == ["Seven"]
    assert client.completions.create(prompt=["7", "dogs"], **settings).unknown == [["7"], []]
    first, *rest = client.completions.create(prompt="Seven dogs", stream=True, **settings)
    assert first.unknown == ["Seven"]
    assert not any(hasattr(part, "unknown") for part in rest)


def test_keys(folders: list[Path]) -> None:
    with running(folders[:1], keys=["open-sesame", "other"]) as (url, _):
        for key in ("wrong", "open-sesam", "open-sesame2"):
            with pytest.raises(openai.AuthenticationError, match="the API key is invalid"):
                openai.OpenAI(base_url=f"{url}/v1", api_key=key).models.list()
        assert openai.OpenAI(base_url=f"{url}/v1", api_key="open-sesame").models.list().data
        assert LibreTranslateAPI(url + "/", api_key="other").translate("two", "en", "de")
        with pytest.raises(Exception, match="400"):
            LibreTranslateAPI(url + "/").translate("two", "en", "de")


def test_concurrent_clients_get_their_own_completions(client: openai.OpenAI) -> None:
    def complete(seed: int) -> str:
        settings = {"model": "language", "prompt": "to " * (1 + seed % 5), "max_tokens": 5 + seed}
        return str(client.completions.create(**settings, seed=seed).choices[0].text)

    alone = [complete(seed) for seed in range(12)]
    together: dict[int, str] = {}
    threads = [threading.Thread(target=lambda seed=seed: together.update({seed: complete(seed)})) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[seed] for seed in range(12)] == alone
