"""/v1/chat/completions by OpenAI's client. Models with a chat template: tests/interop/test_hf_chat.py."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from serve_folders import running

from allyouneed.decode import SearchConfig, translate
from allyouneed.serve.backend import Backend
from allyouneed.serve.chat import ChatFormat
from allyouneed.serve.chat_schema import ChatRequest
from allyouneed.serve.completion_format import CompletionPart
from allyouneed.serve.detokenizer import TextPiece
from allyouneed.serve.slices import SliceTurns, TimeSlice

pytestmark = pytest.mark.no_shapes
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "to be?"}]
TURNS = "System: Be brief.\nUser: to be?\nAssistant:"


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def collected(parts: Any) -> dict[int, tuple[str, str]]:
    """Return the text and the finish reason of each choice of a stream."""
    found: dict[int, tuple[str, str]] = {}
    for part in parts:
        assert part.object == "chat.completion.chunk"
        for choice in part.choices:
            first = choice.index not in found
            assert (choice.delta.role == "assistant") is first
            text, finish = found.get(choice.index, ("", ""))
            found[choice.index] = text + choice.delta.content, choice.finish_reason or finish
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_plain_turns_are_a_completion(client: openai.OpenAI, stream: bool) -> None:
    settings = {"model": "language", "temperature": 0.9, "seed": 5, "n": 2, "top_p": 0.9}
    wanted = client.completions.create(prompt=TURNS, max_tokens=20, stop="\nUser:", **settings)
    right = {one.index: (one.text.removeprefix(" "), one.finish_reason) for one in wanted.choices}
    answer = client.chat.completions.create(messages=CHAT, max_tokens=20, stream=stream, **settings)
    if stream:
        assert collected(answer) == right
    else:
        assert {one.index: (one.message.content, one.finish_reason) for one in answer.choices} == right
        assert answer.object == "chat.completion"
        assert answer.choices[0].message.role == "assistant"
        assert answer.usage == wanted.usage


def test_contents_may_be_parts(client: openai.OpenAI) -> None:
    settings = {"model": "language", "temperature": 0, "max_completion_tokens": 8}
    parts = [CHAT[0], {"role": "user", "content": [{"type": "text", "text": "to "}, {"type": "text", "text": "be?"}]}]
    first, second = (client.chat.completions.create(messages=chat, **settings) for chat in (CHAT, parts))
    assert first.choices[0].message.content == second.choices[0].message.content
    assert first.usage.completion_tokens == 8
    assert first.choices[0].finish_reason == "length"


def test_the_default_is_the_limit_of_the_server(folders: list[Path]) -> None:
    with running([folders[3]], max_tokens=30) as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        answer = client.chat.completions.create(messages=CHAT, model="language", temperature=0)
        whole = client.completions.create(prompt=TURNS, model="language", temperature=0, max_tokens=30, stop="\nUser:")
        assert answer.choices[0].message.content == whole.choices[0].text.removeprefix(" ")
        assert answer.usage == whole.usage


@pytest.mark.parametrize("stream", [False, True])
def test_the_last_message_of_the_user_is_the_source(
    client: openai.OpenAI, server: tuple[str, Backend], stream: bool
) -> None:
    bundle = server[1].models["numbers-de"].bundle
    wanted = translate(bundle.model, bundle.codec, ["seven"], SearchConfig(beam=1))[0][0].text
    chat = [*CHAT, {"role": "assistant", "content": "no"}, {"role": "user", "content": "seven"}]
    answer = client.chat.completions.create(model="numbers-de", messages=chat, temperature=0, stream=stream)
    text = collected(answer)[0][0] if stream else answer.choices[0].message.content
    assert text == wanted
    reversed_ = client.chat.completions.create(model="reverse", messages=[{"role": "user", "content": "abcd"}])
    assert reversed_.choices[0].message.content == "d c b a"
    unknown = client.chat.completions.create(model="numbers-de", messages=[{"role": "user", "content": "Two dogs"}])
    assert unknown.unknown == ["Two"]


def test_logprobs(client: openai.OpenAI) -> None:
    settings = {"model": "language", "temperature": 0, "max_tokens": 6}
    wanted = client.completions.create(prompt=TURNS, logprobs=3, **settings).choices[0].logprobs
    answer = client.chat.completions.create(messages=CHAT, logprobs=True, top_logprobs=3, **settings)
    content = answer.choices[0].logprobs.content
    assert [one.token for one in content] == wanted.tokens
    assert [one.logprob for one in content] == pytest.approx(wanted.token_logprobs)
    for one, top in zip(content, wanted.top_logprobs, strict=True):
        assert {other.token: other.logprob for other in one.top_logprobs} == pytest.approx(top)
        assert bytes(one.bytes).decode() == one.token
        # At temperature 0 the best token is chosen. Bytes at the end that are not a character have no alternatives.
        assert not one.top_logprobs or one.top_logprobs[0].logprob == one.logprob
    bare = client.chat.completions.create(messages=CHAT, logprobs=True, **settings).choices[0].logprobs.content
    assert [one.top_logprobs for one in bare] == [[]] * len(content)
    streamed = client.chat.completions.create(messages=CHAT, logprobs=True, top_logprobs=3, stream=True, **settings)
    assert [one for part in streamed for one in part.choices[0].logprobs.content] == content


def test_stop_and_usage_in_a_stream(client: openai.OpenAI) -> None:
    settings = {"model": "language", "messages": CHAT, "max_tokens": 30, "seed": 3}
    whole = client.chat.completions.create(**settings).choices[0].message.content
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    more = {"stop": [stop], "stream": True, "stream_options": {"include_usage": True}}
    *parts, last = client.chat.completions.create(**settings, **more)
    assert collected(parts) == {0: (whole[: whole.index(stop)], "stop")}
    assert last.choices == []
    assert last.usage.completion_tokens > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"messages": []}, "messages"),
        ({"messages": CHAT[:1] * 1025}, "at most 1024 items"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "should be system, developer, user or assistant"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]}, "a list of texts"),
        ({"model": "numbers-de", "messages": CHAT[:1]}, "messages: no message of a user"),
        ({"messages": [{"role": "user", "content": "x" * 30000}]}, "at most 20,000"),
        ({"messages": [{"role": "user", "content": "ж" * 9000}]}, "more than 1,024 tokens"),
        ({"max_tokens": 2000}, "max_tokens: 2000 is more than 1024"),
        ({"max_completion_tokens": 2000}, "max_completion_tokens: 2000 is more than 1024"),
        ({"max_completion_tokens": 2, "max_tokens": 2}, "send one of them"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: 21 is more than 20"),
        ({"top_logprobs": 2}, "only with logprobs"),
        ({"n": 9}, "n: 9 is more than 8"),
        ({"tools": [{"type": "function", "function": {"name": "x"}}]}, "tools: not supported here"),
        ({"response_format": {"type": "json_object"}}, "only text is supported"),
        ({"presence_penalty": 1}, "not supported here"),
        ({"extra_body": {"unheard_of": 1}}, "unheard_of"),
    ],
)
def test_refusals(client: openai.OpenAI, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        client.chat.completions.create(**{"model": "language", "messages": CHAT, **settings})


def test_other_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=CHAT)


def test_long_log_probabilities_leave_turns_to_others() -> None:
    """The response of 1 choice of 1,024 tokens took the event loop for 0.1 seconds."""
    settings = {"model": "m", "messages": CHAT, "logprobs": True, "top_logprobs": 20}
    shape = ChatFormat("m", ChatRequest.model_validate(settings), plain=True)
    top = (('a "content":[] b', -1.0),) * 20
    part = CompletionPart(0, 0, [TextPiece(' "content":[]', -0.5, top) for _ in range(1024)], "stop")

    async def run() -> tuple[str, int]:
        others = 0

        async def count() -> None:
            nonlocal others
            while True:
                others += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(count())
        text = await shape.dump_choice(part, TimeSlice(SliceTurns()))
        task.cancel()
        return text, others

    text, others = asyncio.run(run())
    assert json.loads(text) == json.loads(shape.choice(part).model_dump_json())
    assert others >= 3
