"""API keys: where a request may carry them, and how often they may be guessed."""

from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from serve_folders import running

from allyouneed.serve import keys
from allyouneed.serve.clients import key_client
from allyouneed.serve.errors import Refusal
from allyouneed.serve.keys import MAX_ENTRIES, MAX_WRONG, Keys

pytestmark = pytest.mark.no_shapes


def status(url: str, key: str | None, address: str = "127.0.0.1") -> int:
    """Return the status of a request with this key from this address."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with httpx.Client(transport=httpx.HTTPTransport(local_address=address)) as client:
        return client.get(f"{url}/v1/models", headers=headers).status_code


def test_where_a_key_may_be(folders: list[Path]) -> None:
    fields = {"q": "one", "source": "en", "target": "de"}
    with_key = {**fields, "api_key": "open-sesame"}
    bearer = {"Authorization": "bearer open-sesame"}
    with running(folders[:1], keys=["open-sesame"]) as (url, _):
        right: list[dict[str, Any]] = [
            {"json": with_key},
            {"data": with_key},
            {"files": {name: (None, value) for name, value in with_key.items()}},
            {"data": fields, "headers": bearer},
            {"json": fields, "headers": bearer},
            {"json": fields, "params": {"api_key": "open-sesame"}},
            {"json": {**with_key, "api_key": "wrong"}, "headers": bearer},
        ]
        for request in right:
            assert httpx.post(f"{url}/translate", **request).status_code == 200, request
        wrong: list[dict[str, Any]] = [
            {"json": {**fields, "api_key": "wrong"}},
            {"json": fields, "headers": {"Authorization": "Bearer wrong"}},
            {"json": fields, "params": {"api_key": "wrong"}},
        ]
        for request in wrong:
            assert httpx.post(f"{url}/translate", **request).status_code == 403, request
        assert httpx.post(f"{url}/translate", json=fields, headers={"Authorization": "Basic a"}).status_code == 400
        for path in ("/health", "/languages", "/frontend/settings", "/", "/page/main.js", "/openapi.json"):
            assert httpx.get(url + path).status_code == 200, path
        for path in ("/metrics", "/v1/models", "/api/models", "/runs", "/rasp/examples", "/nothing", "/page/../runs"):
            assert httpx.get(url + path).status_code == 401, path
        assert httpx.post(f"{url}/v1/models", params={"api_key": "open-sesame"}).status_code == 401


def test_keys_cannot_be_guessed_without_limit(folders: list[Path]) -> None:
    with running(folders[:1], keys=["used", "new"]) as (url, _):
        assert [status(url, None) for _ in range(2 * MAX_WRONG)] == [401] * 2 * MAX_WRONG  # no guesses
        assert status(url, "used", "127.0.0.2") == 200
        guesses = [status(url, f"guess{number}", "127.0.0.2") for number in range(MAX_WRONG + 5)]
        assert guesses == [401] * MAX_WRONG + [429] * 5
        assert status(url, "new", "127.0.0.2") == 429  # 200 would show that the guess is right
        assert status(url, "used", "127.0.0.2") == 200  # a client at work is not locked out
        assert status(url, None, "127.0.0.2") == 401
        assert status(url, "new", "127.0.0.3") == 200  # nor is any other address
        assert status(url, "guess", "127.0.0.3") == 401
        with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2")) as client:
            found = client.post(f"{url}/translate", json={"q": "one", "api_key": "new"})
        assert found.status_code == 429
        assert 0 < int(found.headers["retry-after"]) <= 60


def test_a_request_carries_one_guess(folders: list[Path]) -> None:
    fields = {"q": "one", "source": "en", "target": "de"}
    both = "api_key=wrong&api_key=open-sesame"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    with running(folders[:1], keys=["open-sesame"]) as (url, _):
        in_query = httpx.post(f"{url}/translate?{both}", json=fields)
        in_form = httpx.post(f"{url}/translate", content=f"q=one&source=en&target=de&{both}", headers=form)
        for found in (in_query, in_form):
            assert (found.status_code, found.json()["error"]) == (400, "api_key is given more than once; send one key")


def test_every_wrong_key_of_a_request_counts() -> None:
    keys = Keys(lambda: ["right"])
    for number in range(MAX_WRONG // 2):
        with pytest.raises(Refusal) as wrong:
            keys.check("127.0.0.1", [f"{number}a", f"{number}b"])
        assert wrong.value.status == 401
    with pytest.raises(Refusal) as refused:
        keys.check("127.0.0.1", ["right"])
    assert refused.value.status == 429


def test_guessing_may_go_on_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(keys.time, "monotonic", lambda: now)
    checked = Keys(lambda: ["right"])
    for _ in range(3):
        for _ in range(MAX_WRONG):
            with pytest.raises(Refusal) as refused:
                checked.check("127.0.0.2", ["wrong"])
            assert refused.value.status == 401
        now += 20
        with pytest.raises(Refusal) as refused:
            checked.check("127.0.0.2", ["right"])
        assert (refused.value.status, refused.value.retry) == (429, 40)
        now += 40.1
    assert checked.check("127.0.0.2", ["wrong", "right"]) == key_client("right")


def test_the_tables_are_bounded() -> None:
    checked = Keys(lambda: ["right"])
    for number in range(MAX_ENTRIES + 1000):
        with pytest.raises(Refusal):
            checked.check(f"address {number}", ["wrong"])
        checked.check(f"address {number}", ["right"])
    assert len(checked._wrong) == len(checked._used) == MAX_ENTRIES
