"""LibreTranslate's documented requests, with and without keys, and the responses on which its clients rely."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from libretranslatepy import LibreTranslateAPI
from serve_folders import running, translator

pytestmark = pytest.mark.no_shapes
KEY = "123e4567-e89b-12d3-a456-426614174000"


@pytest.fixture(scope="module")
def keyed(folders: list[Path]) -> Iterator[str]:
    with running(folders[:3], keys=[KEY]) as (url, _):
        yield url


send, get = httpx.post, httpx.get


def post(url: str, path: str = "/translate", **body: Any) -> tuple[int, Any]:
    return answer(send(url + path, json=body))


def answer(response: Any) -> tuple[int, Any]:
    """Return the status and the body. Errors have a request id, too."""
    tree = response.json()
    if response.status_code >= 400:
        assert tree.pop("request_id") == response.headers["X-Request-Id"]
    return response.status_code, tree


def test_documented_requests(url: str) -> None:
    status, simple = post(url, q="two dogs", source="en", target="de")
    assert status == 200
    assert simple.keys() - {"warnings"} == {"translatedText"}  # a random model may repeat itself
    status, auto = post(url, q="two dogs", source="auto", target="de")
    assert auto == {**simple, "detectedLanguage": {"confidence": 100.0, "language": "en"}}
    status, several = post(url, q=["two dogs", "seven"], source="auto", target="de", format="text")
    assert several["translatedText"][0] == simple["translatedText"]
    assert [one["language"] for one in several["detectedLanguage"]] == ["en", "en"]
    status, more = post(url, q="two dogs", source="en", target="fr", format="text", alternatives=3, api_key="")
    assert 1 <= len(more["alternatives"]) <= 3
    assert more["translatedText"] not in more["alternatives"]
    assert post(url, "/detect", q="two dogs") == (200, [{"confidence": 100.0, "language": "en"}])
    languages = get(f"{url}/languages").json()
    assert {"code": "fr", "name": "French", "targets": []} in languages
    settings = get(f"{url}/frontend/settings").json()
    assert (settings["apiKeys"], settings["keyRequired"], settings["charLimit"]) == (False, False, 20000)
    assert get(f"{url}/health").json()["status"] == "ok"


def test_forms_are_as_good_as_json(url: str) -> None:
    wanted = post(url, q="two dogs", source="en", target="de")
    form = {"q": "two dogs", "source": "en", "target": "de", "format": "text", "alternatives": "0", "api_key": ""}
    plain = send(f"{url}/translate", data=form)
    assert (plain.status_code, plain.json()) == wanted
    parts = send(f"{url}/translate", files={name: (None, value) for name, value in form.items()})
    assert (parts.status_code, parts.json()) == wanted


@pytest.mark.parametrize("body", [{"q": ""}, {"q": []}, {}])
def test_an_empty_text_is_a_missing_one(url: str, body: dict[str, Any]) -> None:
    missing = (400, {"error": "Invalid request: missing q parameter"})
    assert post(url, **body, source="en", target="de") == missing
    assert post(url, "/detect", **(body if body.get("q") != [] else {})) == missing
    assert answer(send(f"{url}/translate", data={"q": "", "source": "en", "target": "de"})) == missing


@pytest.mark.parametrize("field", ["source", "target"])
def test_missing_languages(url: str, field: str) -> None:
    body = {"q": "two", "source": "en", "target": "de"}
    del body[field]
    assert post(url, **body) == (400, {"error": f"Invalid request: missing {field} parameter"})


def test_unsupported_languages_and_formats(url: str) -> None:
    assert post(url, q="two", source="en", target="xx") == (400, {"error": "xx is not supported"})
    assert post(url, q="two", source="en", target="de", format=None)[0] == 200
    assert post(url, q="two", source="en", target="de", format="odt")[0] == 400


def test_html(url: str) -> None:
    def translate(*texts: str, **more: Any) -> Any:
        return post(url, q=list(texts), source="en", target="de", **more)[1]["translatedText"]

    (hello,) = translate("hello dogs")
    assert translate('<p class="green">hello dogs</p>', format="html") == [f'<p class="green">{html.escape(hello)}</p>']
    page = "<!doctype html>\n<head><style>p > a {}</style></head><body><p>hello\n dogs<br/>&nbsp;<img alt='two'></p>"
    assert translate(page, format="html") == [page.replace("hello\n dogs", html.escape(hello))]
    mixed = '<p>one <a href="/two">dogs</a> &amp; three</p>'
    (found,) = translate(mixed, format="html")
    assert re.findall("<.*?>", found) == re.findall("<.*?>", mixed)
    body = {"q": ["<p>hello dogs</p>", "seven"], "source": "auto", "target": "de", "format": "html", "api_key": None}
    status, several = post(url, **body, alternatives=2)  # the request of Mastodon, with alternatives
    assert status == 200
    assert several["translatedText"][0] == f"<p>{html.escape(hello)}</p>"
    assert [one["language"] for one in several["detectedLanguage"]] == ["en", "en"]
    assert several["alternatives"] == [[], []]
    assert post(url, q="<p>42 dogs</p>", source="en", target="de", format="html")[1]["unknown"] == ["42"]
    assert post(url, q="<![x y]>", source="en", target="de", format="html")[0] == 400
    assert post(url, q="<b>x</b><p>" * 99, source="en", target="de", format="html")[0] == 400


def test_keys(keyed: str) -> None:
    body = {"q": "two dogs", "source": "en", "target": "de"}
    wrong, missing = {"error": "Invalid API key"}, {"error": "Please contact the server operator to get an API key"}
    for path, fields in (("/translate", body), ("/detect", {"q": "two"}), ("/translate", {})):
        assert post(keyed, path, **fields, api_key="wrong") == (403, wrong)
        assert post(keyed, path, **fields) == (400, missing)
        assert post(keyed, path, **fields, api_key="") == (400, missing)
    assert post(keyed, **body, api_key=KEY)[0] == 200
    assert send(f"{keyed}/translate", data={**body, "api_key": KEY}).status_code == 200
    assert answer(send(f"{keyed}/translate", data={**body, "api_key": "wrong"})) == (403, wrong)
    header = {"Authorization": f"Bearer {KEY}"}
    assert send(f"{keyed}/translate", json=body, headers=header).status_code == 200
    assert get(f"{keyed}/languages").status_code == 200
    settings = get(f"{keyed}/frontend/settings").json()
    assert (settings["apiKeys"], settings["keyRequired"]) == (True, True)


def test_libretranslatepy_with_keys(keyed: str) -> None:
    client = LibreTranslateAPI(keyed, api_key=KEY)
    assert (
        client.translate("two dogs", "en", "de")
        == post(keyed, q="two dogs", source="en", target="de", api_key=KEY)[1]["translatedText"]
    )
    assert client.detect("two")[0]["language"] == "en"
    assert {language["code"] for language in client.languages()} == {"en", "de", "fr", "es"}
    with pytest.raises(Exception, match="403"):
        LibreTranslateAPI(keyed, api_key="wrong").translate("two", "en", "de")
    with pytest.raises(Exception, match="400"):
        LibreTranslateAPI(keyed).translate("two", "en", "de")


def test_unknown_words_are_stated(url: str) -> None:
    status, found = post(url, q="Hello, how are you?", source="en", target="de")
    assert status == 200
    assert found["unknown"] == ["Hello,", "you?"]  # this vocabulary has small letters only
    assert "unknown" not in post(url, q="how are you", source="en", target="de")[1]
    status, several = post(url, q=["how are you", "42 dogs"], source="en", target="de")
    assert several["unknown"] == [[], ["42"]]


def test_a_model_of_words(tmp_path: Path) -> None:
    with running([translator(tmp_path, "numbers", kind="words")]) as (url, _):
        assert "unknown" not in post(url, q="forty one", source="en", target="de")[1]
        found = post(url, q="Hello, how are you? seven", source="en", target="de")[1]
        assert found["unknown"] == ["Hello,", "how", "are", "you?"]


def test_words_spelled_byte_by_byte_are_unknown(tmp_path: Path) -> None:
    with running([translator(tmp_path, "numbers", kind="bpe")]) as (url, _):
        assert "unknown" not in post(url, q="seven hundred and forty", source="en", target="de")[1]
        found = post(url, q="seven zebras, quickly! forty", source="en", target="de")[1]
        assert found["unknown"] == ["zebras", "quickly"]


def test_warnings_and_what_stays_in_html(tmp_path: Path) -> None:
    long = "two hundred and seventy dogs and ten thousand"
    with running([translator(tmp_path, "numbers", max_length=2)]) as (url, _):
        found = post(url, q=long, source="en", target="de")[1]
        assert found["warnings"] == ["much shorter than the source"]
        assert "warnings" not in post(url, q="two dogs", source="en", target="de")[1]
        several = post(url, q=["two", long], source="en", target="de")[1]
        assert several["warnings"] == [[], ["much shorter than the source"]]
        page = f"<p>{long} <b>%s <i>two</i></b> <img src=x> see <code>ls</code> 42 at me@x.org</p>"
        found = post(url, q=page, source="en", target="de", format="html")[1]
    assert sorted(re.findall("<.*?>", found["translatedText"])) == sorted(re.findall("<.*?>", page))
    assert all(found["translatedText"].count(part) == 1 for part in ("%s", "<code>ls</code>", "42", "me@x.org"))
    assert found["warnings"] == ["much shorter than the source"]
