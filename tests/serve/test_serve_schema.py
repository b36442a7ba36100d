"""schemathesis: whatever the OpenAPI description allows or forbids, no 5xx and no answer that it does not describe.

`SCHEMATHESIS_EXAMPLES=1000 pytest tests/serve/test_serve_schema.py` tries for longer.
"""

import os
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.core.control import SkipTest
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from serve_folders import running

pytestmark = pytest.mark.no_shapes
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "20"))


@pytest.mark.parametrize("wanted", [True, False], ids=["as described", "against the description"])
def test_every_answer_is_described(folders: list[Path], wanted: bool) -> None:
    with running([folders[0], folders[3]], max_tokens=8, max_input_tokens=32, max_n=2, max_texts=4) as (url, _):
        try_everything(url, wanted)


def try_everything(url: str, wanted: bool) -> None:
    mode = schemathesis.GenerationMode.POSITIVE if wanted else schemathesis.GenerationMode.NEGATIVE
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    schema.config.generation.update(modes=[mode])
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @hypothesis.settings(
            max_examples=EXAMPLES, deadline=None, suppress_health_check=list(hypothesis.HealthCheck), database=None
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Any) -> None:
            nonlocal tried
            tried += 1
            body = case.body
            if wanted and isinstance(body, dict) and "model" in body:  # random names find no model
                body["model"] = "speaker" if len(str(body)) % 2 else "numbers-de"
            if wanted and isinstance(body, dict) and "target" in body and "q" in body:
                body["source"], body["target"] = "en", "de"
            case.call_and_validate(checks=CHECKS)

        try:
            check()
        except SkipTest:  # nothing about it can be wrong: it takes nothing
            assert not wanted
    assert tried > EXAMPLES
