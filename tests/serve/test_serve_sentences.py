"""Every endpoint translates all sentences of a text, as `allyouneed.load` does: none comes back with the first only."""

import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from libretranslatepy import LibreTranslateAPI
from openai import OpenAI
from serve_folders import captioner, running

import allyouneed
from allyouneed.cli.inspect import command
from allyouneed.decode.running_batch import GeneratedToken, Row, RunningBatch
from allyouneed.decode.sample import SampleConfig, uniforms
from allyouneed.serve.backend import Backend
from allyouneed.serve.choice_text import ChoiceText
from allyouneed.serve.completion_format import CompletionPart
from allyouneed.serve.completion_task import CompletionTask
from allyouneed.serve.detokenizer import TextPiece
from allyouneed.serve.engine import Engine
from allyouneed.serve.worker import bytes_of

TEXT = "A dog runs. Two men sit!  They wait.\nNo.\n"
LINE = "A dog runs. Two men sit!  They wait."
PIECES = ["A dog runs.", "Two men sit!", "They wait."]
Server = tuple[str, Backend]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioner(tmp_path_factory.mktemp("sentences"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with running([folder], queue=8, client_queue=5) as found:
        yield found


@pytest.fixture(scope="module")
def wanted(folder: Path) -> list[str]:
    return allyouneed.load(folder).translate([*PIECES, "No.", LINE])


def complete(server: Server, **settings: Any) -> dict[str, Any]:
    body = {"model": "captions", "prompt": LINE, "temperature": 0, **settings}
    response = httpx.post(f"{server[0]}/v1/completions", json=body, timeout=300)
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


def stream(server: Server, **settings: Any) -> tuple[dict[int, str], list[dict[str, Any]]]:
    """Return the texts of a stream by choice, and its events."""
    body = {"model": "captions", "prompt": LINE, "temperature": 0, "stream": True, **settings}
    response = httpx.post(f"{server[0]}/v1/completions", json=body, timeout=300)
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    events, texts = [json.loads(line) for line in lines], dict[int, str]()
    for choice in (choice for event in events for choice in event["choices"]):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts, events


def test_libretranslate(server: Server, wanted: list[str]) -> None:
    client = LibreTranslateAPI(server[0] + "/")
    assert client.translate(TEXT, "en", "de") == f"{wanted[4]}\n{wanted[3]}\n"
    # More sentences than the queue holds of a client.
    assert client.translate(" ".join(["No."] * 12), "en", "de") == " ".join([wanted[3]] * 12)


def test_a_text_of_thirty_sentences_comes_back_with_thirty(server: Server, folder: Path) -> None:
    """As one line, by the command and by /translate: each sentence has its own translation, in order."""
    words = [f"{name} {verb}" for name in ("dogs", "men", "women", "Tom", "Ana") for verb in ("sit", "run", "eat")]
    sentences = [f"{start} {word}{end}" for word in words for start, end in (("Two", "."), ("They and", "!"))]
    assert len(set(sentences)) == 30
    apart = allyouneed.load(folder).translate(sentences)
    text = " ".join(sentences)
    command = [sys.executable, "-m", "allyouneed", "translate", str(folder)]
    line = subprocess.run(command, input=text + "\n", capture_output=True, text=True, check=True)
    assert line.stdout == " ".join(apart) + "\n"
    assert LibreTranslateAPI(server[0] + "/").translate(text, "en", "de") == " ".join(apart)


def test_completions_are_those_of_the_pipeline(server: Server, wanted: list[str]) -> None:
    assert wanted[4] == f"{wanted[0]} {wanted[1]}  {wanted[2]}"
    assert len(set(wanted)) == 5  # the model distinguishes the sentences
    whole = complete(server)
    assert whole["choices"][0]["text"] == wanted[4]
    texts, events = stream(server, stream_options={"include_usage": True})
    assert texts == {0: wanted[4]}
    assert events[-1]["usage"] == whole["usage"]
    assert whole["usage"]["prompt_tokens"] == sum(len(piece) + 1 for piece in PIECES)  # letters and ends
    many = complete(server, prompt=[TEXT, "No.", " ".join(["No."] * 12)], n=1)
    assert [choice["text"] for choice in many["choices"]] == [
        f"{wanted[4]}\n{wanted[3]}",
        wanted[3],
        " ".join([wanted[3]] * 12),
    ]


def test_chat_answers_are_those_of_the_pipeline(server: Server, wanted: list[str]) -> None:
    client = OpenAI(base_url=f"{server[0]}/v1", api_key="none", timeout=300)
    messages: Any = [{"role": "user", "content": LINE}]
    answer = client.chat.completions.create(model="captions", messages=messages, temperature=0)
    assert answer.choices[0].message.content == wanted[4]
    with client.chat.completions.create(model="captions", messages=messages, temperature=0, stream=True) as chunks:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == wanted[4]


@pytest.mark.parametrize("most", [1, 61, 62, 63, 73, 74, 89])
def test_max_tokens_counts_the_tokens_of_all_sentences(server: Server, wanted: list[str], most: int) -> None:
    assert list(map(len, wanted[:3])) == [62, 11, 16]  # the first one reaches the maximum length, and the others end
    for found in (complete(server, max_tokens=most), complete(server, max_tokens=most, logprobs=0)):
        assert found["choices"][0]["text"] == cut(wanted, most)
        assert found["choices"][0]["finish_reason"] == "length"
        assert found["usage"]["completion_tokens"] == most
    texts, events = stream(server, max_tokens=most)
    assert texts == {0: cut(wanted, most)}
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_the_finish_is_that_of_all_sentences(server: Server, wanted: list[str]) -> None:
    for prompt, finish in ((LINE, "length"), (" ".join(PIECES[1:]), "stop"), ("They wait. No.", "length")):
        assert complete(server, prompt=prompt)["choices"][0]["finish_reason"] == finish
        assert stream(server, prompt=prompt)[1][-1]["choices"][0]["finish_reason"] == finish


def cut(wanted: list[str], most: int) -> str:
    """Return the first tokens of all sentences, without those that would be empty. A token is a letter."""
    text, left = "", most
    for gap, piece in zip(("", " ", "  "), wanted, strict=False):
        if left:
            text, left = text + gap + piece[:left], left - len(piece[:left])
    return text


def test_log_probabilities_cover_the_joined_text(server: Server, wanted: list[str]) -> None:
    found = complete(server, logprobs=2)["choices"][0]["logprobs"]
    tokens = found["tokens"]
    assert "".join(tokens) == wanted[4]
    assert len(tokens) == sum(map(len, wanted[:3]))
    assert tokens[len(wanted[0])] == f" {wanted[1][0]}"  # a gap belongs to the token after it
    for token, offset, top in zip(tokens, found["text_offset"], found["top_logprobs"], strict=True):
        assert wanted[4][offset : offset + len(token)] == token
        assert token in top
    pieces = [complete(server, prompt=piece, logprobs=0)["choices"][0]["logprobs"] for piece in PIECES]
    apart = [logprob for piece in pieces for logprob in piece["token_logprobs"]]
    assert found["token_logprobs"] == pytest.approx(apart, abs=1e-4)


def test_a_stop_text_may_span_two_sentences(server: Server, wanted: list[str]) -> None:
    stop = f"{wanted[0][-2:]} {wanted[1][:2]}"
    before = wanted[4][: wanted[4].index(stop)]
    assert complete(server, stop=stop)["choices"][0] | {"logprobs": None} == {
        "index": 0,
        "text": before,
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert stream(server, stop=[stop, "never"])[0] == {0: before}


def test_samples_do_not_depend_on_how_they_are_sent(folder: Path, server: Server) -> None:
    settings: dict[str, Any] = {"prompt": [LINE, "They wait. No."], "n": 2, "seed": 4, "temperature": 1, "logprobs": 1}
    whole = {choice["index"]: choice["text"] for choice in complete(server, **settings)["choices"]}
    assert stream(server, **settings)[0] == whole
    assert len({whole[0], whole[1]}) == 2
    assert len(set(complete(server, prompt="No. No.", seed=1, temperature=1)["choices"][0]["text"].split())) > 1
    # With a backlog of one byte every token suspends its rows, and no sentence is decoded ahead.
    with running([folder], max_backlog=1) as slow:
        assert stream(slow, **settings)[0] == whole


def test_tokens_that_wait_are_bounded(folder: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    receive, held = ChoiceText.receive, [0]

    def measured(self: ChoiceText, piece: int, token: GeneratedToken) -> Iterator[list[TextPiece]]:
        yield from receive(self, piece, token)
        tokens = [token for arrived in self._arrived.values() for token in arrived]
        held.append(sum(bytes_of(len(token.top)) for token in tokens))

    monkeypatch.setattr(ChoiceText, "receive", measured)
    with running([folder], max_backlog=50_000) as server:
        texts, _ = stream(server, prompt=" ".join(["No."] * 12), logprobs=1)
    assert texts == {0: " ".join([wanted[3]] * 12)}
    assert 0 < max(held) <= 50_000


def test_echo_precedes_the_joined_text(server: Server, wanted: list[str]) -> None:
    assert complete(server, echo=True)["choices"][0]["text"] == LINE + wanted[4]


def test_later_sentences_wait_for_room(folder: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of many sentences was accepted: it is not refused because other requests fill the queue meanwhile."""
    decode, filled = CompletionTask._decode, list[Any]()

    async def decode_then_fill(self: CompletionTask, *args: Any) -> AsyncGenerator[CompletionPart]:
        async for part in decode(self, *args):
            yield part
        if not filled:
            filled.append(self._engine.generate([self._row(0, 0, 0) for _ in range(4)]))

    monkeypatch.setattr(CompletionTask, "_decode", decode_then_fill)
    with running([folder], queue=4, client_queue=4, batch=1) as server:
        found = complete(server, prompt=" ".join(["No."] * 5))
    assert found["choices"][0]["text"] == " ".join([wanted[3]] * 5)
    assert filled


def test_later_sentences_of_translate_wait_for_room(
    folder: Path, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, filled = Engine.run, list[Any]()

    async def run_then_fill(self: Engine, *args: Any) -> list[Any]:
        found = await run(self, *args)
        if not filled:
            rows = [Row([], [5, 6], SampleConfig(temperature=0), uniforms(0, 0, 0)) for _ in range(4)]
            filled.append(self.generate(rows))
        return found

    monkeypatch.setattr(Engine, "run", run_then_fill)
    with running([folder], queue=4, client_queue=4, batch=1) as server:
        client = LibreTranslateAPI(server[0] + "/")
        assert client.translate(" ".join(["No."] * 5), "en", "de") == " ".join([wanted[3]] * 5)
    assert filled


def test_the_deadline_covers_all_sentences(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = RunningBatch.step

    def slowly(self: RunningBatch) -> list[GeneratedToken]:
        time.sleep(0.01)  # so half a second for a turn of one sentence
        return step(self)

    monkeypatch.setattr(RunningBatch, "step", slowly)
    with running([folder], client_queue=1, deadline=2) as server:
        body = {"model": "captions", "prompt": " ".join(["No."] * 20), "temperature": 0}
        response = httpx.post(f"{server[0]}/v1/completions", json=body, timeout=300)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "deadline_exceeded")


def test_inspect_states_that_the_text_is_read_at_once(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(str(folder), "They wait. No.", out=tmp_path / "inspect")
    assert "translates this text in 2 pieces" in capsys.readouterr().out
    assert '"pieces": 2' in (tmp_path / "inspect" / "index.html").read_text("utf-8")


def test_a_model_of_longer_lines_reads_them_whole(tmp_path: Path) -> None:
    folder = captioner(tmp_path, sentences=3)
    (whole,) = allyouneed.load(folder).translate([LINE], sentences="never")
    with running([folder]) as server:
        assert complete(server)["choices"][0]["text"] == whole
