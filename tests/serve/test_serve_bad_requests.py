"""Invalid requests: their statuses and messages. None of them reaches a model."""

import contextlib
import contextvars
import json
import socket
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from raw_http import read_status
from serve_folders import running, translator

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.serve import ServeConfig, create_app, open_models
from allyouneed.serve.errors import Refusal
from allyouneed.serve.request_record import RequestRecord, set_record
from waiting import PATIENCE

pytestmark = pytest.mark.no_shapes


@pytest.mark.parametrize(
    "body",
    [
        {"q": 5, "source": "en", "target": "de"},
        {"q": ["one", 2], "source": "en", "target": "de"},
        {"q": {"a": "b"}, "source": "en", "target": "de"},
        {"q": None, "source": "en", "target": "de"},
        {"q": "one", "source": "en", "target": "de", "alternatives": "many"},
        {"q": "one", "source": "en", "target": "de", "alternatives": 1.5},
        {"q": "one", "source": "en", "target": "de", "alternatives": True},
        {"q": "one", "source": "en", "target": "de", "alternatives": -1},
        {"q": "one", "source": "en", "target": "de", "alternatives": 8},
        {"q": "\ud800", "source": "en", "target": "de"},
        {"q": "one", "source": "\udfff", "target": "de"},
        {"q": "one", "source": "en", "target": "xx"},
        {"q": "one", "source": "de", "target": "en"},
        {"q": "one", "source": "auto", "target": "en"},
        {"q": "one", "source": "en", "target": "de", "format": "pdf"},
        {"q": "one", "source": "en", "target": "de", "colour": "red"},
        {"q": "one", "source": "en"},
        {"q": ["a"] * 65, "source": "en", "target": "de"},
        {"q": "a\n" * 65, "source": "en", "target": "de"},
        {"q": "a" * 20_001, "source": "en", "target": "de"},
        {"q": "a" * 2_000, "source": "en", "target": "de"},
        [],
        "one",
    ],
    ids=lambda body: json.dumps(body)[:60],
)
def test_translate_refuses(url: str, body: Any) -> None:
    found = httpx.post(f"{url}/translate", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert found.status_code == 400
    assert list(found.json()) == ["error", "request_id"]
    assert isinstance(found.json()["error"], str)


def multipart(**fields: bytes) -> bytes:
    """Return a form whose boundary is x."""
    head = 'Content-Disposition: form-data; name="{}"'
    parts = [b"--x\r\n%s\r\n\r\n%s\r\n" % (head.format(name).encode(), value) for name, value in fields.items()]
    return b"".join([*parts, b"--x--\r\n"])


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"{", "application/json"),
        (b"\xff\xfe", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'{"q": ' + b"1" * 5000 + b"}", "application/json"),
        (b"q=one", "text/plain"),
        (b"q=one&source=en&target=de&alternatives=x", "application/x-www-form-urlencoded"),
        (b"&".join(b"q=1" for _ in range(200)), "application/x-www-form-urlencoded"),
        (b"q=\xff\xfe&source=en&target=de", "application/x-www-form-urlencoded"),
        (b"q=%FF%FE&source=en&target=de", "application/x-www-form-urlencoded"),
        (multipart(q=b"\xff\xfe", source=b"en", target=b"de"), "multipart/form-data; boundary=x"),
        (b"junk", "multipart/form-data"),
        (b"junk", "multipart/form-data; boundary=x"),
    ],
)
def test_unreadable_bodies(url: str, content: bytes, kind: str) -> None:
    found = httpx.post(f"{url}/translate", content=content, headers={"Content-Type": kind})
    assert (found.status_code, type(found.json()["error"])) == (400, str)


def test_forms_are_utf_8_escaped_or_not(url: str) -> None:
    """`curl -d q=...` escapes nothing. The confidence is 100 only if the letters are decoded correctly."""
    for content, kind in (
        ("q=süß+ä".encode(), "application/x-www-form-urlencoded"),
        (b"q=s%C3%BC%C3%9F%20%C3%A4", "application/x-www-form-urlencoded; charset=utf-8"),
        (multipart(q="süß ä".encode()), "multipart/form-data; boundary=x"),
    ):
        found = httpx.post(f"{url}/detect", content=content, headers={"Content-Type": kind})
        assert found.json()[0]["confidence"] == 100


def test_requests_larger_than_the_queue_get_no_retry_after(folders: list[Path]) -> None:
    with running([folders[0], folders[3]], queue=40) as (url, _):
        for path, body, param in (
            ("/translate", {"q": ["one"] * 64, "source": "en", "target": "de"}, "q"),
            ("/v1/completions", {"model": "language", "prompt": ["a"] * 21, "n": 2}, "prompt"),
            ("/score", {"model": "language", "text": ["a"] * 41}, "text"),
        ):
            found = httpx.post(url + path, json=body)
            assert (found.status_code, found.headers.get("retry-after")) == (400, None), found.text
            error = found.json()["error"]
            message = error if isinstance(error, str) else error["message"]
            assert message.startswith(f"{param}: ")
            assert "at most 40" in message
            assert "--queue" in message


@pytest.mark.parametrize(("setting", "limit", "most"), [("beam", "max_beam", 64), ("max_length", "max_tokens", 1024)])
def test_models_whose_search_exceeds_the_limits(tmp_path: Path, setting: str, limit: str, most: int) -> None:
    """The folder chooses its search settings, and it is not trusted."""
    folder = translator(tmp_path, "numbers", **{setting: 100_000})
    with pytest.raises(
        ConfigError, match=f"numbers-de: .* decode.{setting} = 100000, .* most {most}; .* {limit}=100000"
    ):
        create_app(ServeConfig(), open_models([str(folder)]))
    create_app(parse(ServeConfig, {limit: 100_000}), open_models([str(folder)]))


def test_alternatives_are_limited_by_the_beam(folders: list[Path]) -> None:
    with running(folders[:1], max_beam=3) as (url, _):
        body = {"q": "one", "source": "en", "target": "de"}
        for alternatives, status in ((2, 200), (3, 400)):
            found = httpx.post(f"{url}/translate", json={**body, "alternatives": alternatives})
            assert found.status_code == status
        assert found.json()["error"] == "alternatives: at most 2"


def test_forms_json_lists_lines_and_alternatives(url: str) -> None:
    body = {"q": "one", "source": "en", "target": "fr"}
    text = httpx.post(f"{url}/translate", json=body).json()["translatedText"]
    assert httpx.post(f"{url}/translate", data=body).json() == {"translatedText": text}
    multipart = {name: (None, value) for name, value in body.items()}
    assert httpx.post(f"{url}/translate", files=multipart).json() == {"translatedText": text}
    several = httpx.post(f"{url}/translate", json={**body, "q": ["one", "", "one\n\n one \r\none"]}).json()
    space = httpx.post(f"{url}/translate", json={**body, "q": " one "}).json()["translatedText"]
    assert several == {"translatedText": [text, "", f"{text}\n\n{space}\r\n{text}"]}
    auto = httpx.post(f"{url}/translate", json={**body, "source": "auto", "alternatives": 2}).json()
    assert auto["detectedLanguage"] == {"confidence": 100.0, "language": "en"}
    assert auto["translatedText"] == text
    assert 1 <= len(auto["alternatives"]) <= 2
    settings = httpx.get(f"{url}/frontend/settings").json()
    assert settings["charLimit"] == 20_000
    assert settings["keyRequired"] is False


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": 5},
        {"prompt": [1, 2]},
        {"prompt": []},
        {"prompt": ["a"] * 65},
        {"prompt": "a" * 20_001},
        {"prompt": "b" * 5_000},
        {"prompt": "\ud800"},
        {"n": 0},
        {"n": 9},
        {"n": True},
        {"max_tokens": -1},
        {"max_tokens": 1025},
        {"max_tokens": 1.5},
        {"temperature": -1},
        {"temperature": 1e-9},
        {"temperature": "hot"},
        {"top_p": 0},
        {"top_k": 0},
        {"logprobs": 21},
        {"stop": ""},
        {"stop": ["a"] * 5},
        {"seed": -1},
        {"seed": 1 << 70},
        {"best_of": 3},
        {"suffix": "x"},
        {"presence_penalty": 0.5},
        {"logit_bias": {"5": 1}},
        {"stream_options": {"include_usage": True}},
        {"colour": "red"},
        {"model": "numbers-de", "echo": True, "logprobs": 1},
        {"model": "reverse", "logprobs": 1},
        {"model": "reverse", "prompt": "abz"},
    ],
    ids=lambda change: json.dumps(change)[:60],
)
def test_completions_refuse(url: str, change: dict[str, Any]) -> None:
    body = json.dumps({"model": "language", "prompt": "a", **change})
    found = httpx.post(f"{url}/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert found.status_code == 400, found.text
    assert set(found.json()["error"]) == {"message", "type", "param", "code", "request_id"}
    assert found.json()["error"]["type"] == "invalid_request_error"


STOPS = "stop: should be at most 4 stop texts, each of 1 to 100 characters"
PROMPTS = "prompt: should be a text or a list of texts; token ids are not supported, send text"


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        ("/v1/completions", {"stop": ["a"] * 5}, STOPS),
        ("/v1/completions", {"stop": ["a", ""]}, STOPS),
        ("/v1/completions", {"prompt": [1, 2]}, PROMPTS),
        ("/v1/completions", {"prompt": [["a"]]}, PROMPTS),
        ("/v1/completions", {"frequency_penalty": 0.5}, "frequency_penalty: not supported here; leave it out"),
        ("/v1/completions", {"presence_penalty": -1}, "presence_penalty: not supported here; leave it out"),
        ("/v1/completions", {"logit_bias": {"5": 1}}, "logit_bias: not supported here; leave it out"),
        ("/v1/completions", {"suffix": "x"}, "suffix: not supported here; leave it out"),
        ("/v1/completions", {"best_of": 3}, "best_of: should equal n; leave it out"),
        ("/v1/completions", {"stream_options": {}}, "stream_options: only with stream"),
        ("/score", {"text": 5}, "text: should be a text or a list of texts"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_a_refusal_names_the_field_and_the_remedy(url: str, path: str, change: dict[str, Any], message: str) -> None:
    body = {"model": "language", **({"prompt": "a"} if path == "/v1/completions" else {}), **change}
    error = httpx.post(url + path, json=body).json()["error"]
    assert (error["message"], error["param"]) == (message, next(iter(change)))


def test_neutral_values_are_accepted(url: str) -> None:
    neutral = {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "suffix": "", "best_of": 2, "n": 2}
    body = {"model": "language", "prompt": "a", "stop": ["a"] * 4, "max_tokens": 1, **neutral}
    assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/score"])
def test_json_needs_its_content_type(url: str, path: str) -> None:
    body = b'{"model": "language", "prompt": "a"}'
    for kind in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):  # the latter is what curl sends
        found = httpx.post(url + path, content=body, headers=kind)
        assert found.status_code == 400
        assert "Content-Type: application/json" in found.json()["error"]["message"]
    for content in (b"[]", b"5", b""):
        found = httpx.post(url + path, content=content, headers={"Content-Type": "application/json"})
        assert found.status_code == 400
        assert found.json()["error"]["message"] == "the body should be a JSON object"


def test_unknown_models_paths_and_methods(url: str) -> None:
    missing = httpx.post(f"{url}/v1/completions", json={"model": "languages", "prompt": "a"})
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"
    assert "did you mean 'language'" in missing.json()["error"]["message"]
    assert httpx.get(f"{url}/nothing").status_code == 404
    assert httpx.get(f"{url}/translate").status_code == 405


def test_large_bodies_are_refused_before_they_are_read(url: str) -> None:
    def chunks() -> Any:
        for _ in range(40):
            yield b"a" * (1 << 16)

    kind = {"Content-Type": "application/json"}
    for path in ("/translate", "/v1/completions"):
        assert httpx.post(url + path, content=b"a" * (1 << 21), headers=kind).status_code == 413
        assert httpx.post(url + path, content=chunks(), headers=kind).status_code == 413
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        assert read_status(connection) == 413


@pytest.mark.parametrize("start", [b"GET /", b"GET /health HTTP/1.1\r\nX-Long: "])
def test_endless_headers(url: str, start: bytes) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")  # earlier requests do not count
        assert read_status(connection) == 200
        answer = b""
        with contextlib.suppress(ConnectionError):  # the server may close the connection before everything is sent
            for chunk in (start, *[b"a" * (1 << 14)] * 5):
                connection.sendall(chunk)
            while more := connection.recv(1000):  # times out unless the server closes the connection
                answer += more
        assert answer.startswith(b"HTTP/1.1 400") or not answer


def test_long_headers_with_a_body_are_accepted(url: str) -> None:
    body = {"model": "language", "prompt": "to be", "user": "a" * 100_000, "max_tokens": 1}
    answer = httpx.post(f"{url}/v1/completions", json=body, headers={"X-Long": "a" * 50_000})
    assert answer.status_code == 200


@pytest.mark.parametrize("length", [180, 230, 245, 300])
def test_errors_are_bounded(length: int) -> None:
    """Each of these characters takes 12 bytes in JSON, and each of the request id 2."""

    def body() -> dict[str, Any]:
        set_record(RequestRecord("\\" * 128))
        return Refusal(400, "\U0001f600" * length, param="\U0001f600" * length, code="too_many_connections").tree

    found = contextvars.copy_context().run(body)
    assert found["error"]["request_id"] == "\\" * 128
    assert len(json.dumps(found)) <= 4096


def test_scores(url: str) -> None:
    found = httpx.post(f"{url}/score", json={"model": "language", "text": ["to be", "or"]}).json()
    assert [len(one["token_logprobs"]) for one in found["scores"]] == [one["tokens"] for one in found["scores"]]
    assert all(one["logprob"] == pytest.approx(sum(one["token_logprobs"])) for one in found["scores"])
    assert httpx.post(f"{url}/score", json={"model": "language", "text": []}).json()["scores"] == []
    pair = {"model": "numbers-de", "text": "one", "target": "ab"}
    assert httpx.post(f"{url}/score", json=pair).json()["scores"][0]["tokens"] == 3
    classes = {"model": "reverse", "text": "ab", "target": "b a"}
    assert httpx.post(f"{url}/score", json=classes).json()["scores"][0]["logprob"] == pytest.approx(0, abs=0.01)
    for wrong in (
        {"model": "language", "text": "a", "target": "b"},
        {"model": "numbers-de", "text": "a"},
        {"model": "numbers-de", "text": ["a", "b"], "target": ["c"]},
        {"model": "reverse", "text": "ab", "target": "b z"},
        {"model": "reverse", "text": "a\tb", "target": "b a"},
    ):
        assert httpx.post(f"{url}/score", json=wrong).status_code == 400, wrong


def test_headers(url: str) -> None:
    found = httpx.get(f"{url}/health", headers={"Origin": "http://elsewhere.example"})
    assert found.json() == {"status": "ok", "models": ["numbers-de", "lstm-fr", "bytenet-es", "language", "reverse"]}
    assert "default-src 'none'" in found.headers["content-security-policy"]
    assert "access-control-allow-origin" not in found.headers
    assert "allyouneed_tokens_total" in httpx.get(f"{url}/metrics").text


def test_pages_of_allowed_origins_may_send_requests(folders: list[Path]) -> None:
    with running(folders[:1], cors=["http://friend.example"]) as (url, _):
        for origin, allowed in (("http://friend.example", True), ("http://foe.example", False)):
            found = httpx.get(f"{url}/health", headers={"Origin": origin})
            assert ("access-control-allow-origin" in found.headers) is allowed
