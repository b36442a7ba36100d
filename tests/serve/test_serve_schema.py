"""schemathesis: valid and invalid requests get no 5xx and no response that the OpenAPI description does not allow.

`SCHEMATHESIS_EXAMPLES=1000 pytest tests/serve/test_serve_schema.py` tries more requests.
"""

import os
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import requests
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

from waiting import PATIENCE

pytestmark = pytest.mark.no_shapes
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "20"))


@pytest.mark.parametrize("valid", [True, False], ids=["valid", "invalid"])
def test_every_response_is_described(folders: list[Path], valid: bool) -> None:
    with running([folders[0], folders[3]], max_tokens=8, max_input_tokens=32, max_n=2, max_texts=4) as (url, _):
        try_everything(url, valid)


def try_everything(url: str, valid: bool) -> None:
    mode = schemathesis.GenerationMode.POSITIVE if valid else schemathesis.GenerationMode.NEGATIVE
    requests.get(f"{url}/api/models", timeout=PATIENCE)  # its imports may take longer than schemathesis waits
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
            if valid and isinstance(body, dict) and "model" in body:  # random names match no model
                body["model"] = "language" if len(str(body)) % 2 else "numbers-de"
            if valid and isinstance(body, dict) and "target" in body and "q" in body:
                body["source"], body["target"] = "en", "de"
            case.call_and_validate(checks=CHECKS, timeout=PATIENCE)  # the machine may be busy

        try:
            check()
        except SkipTest:  # without parameters there are no invalid requests
            assert not valid
    assert tried > EXAMPLES
