"""Refusals: every error response has a status, a type and a message.

There are two response formats. LibreTranslate's endpoints send {"error": text, "request_id": id}. All others send
OpenAI's format, {"error": {"message", "type", "param", "code", "request_id"}}. The status of a missing or wrong API key
differs, too: OpenAI sends 401 for both; LibreTranslate sends 400 and 403, and its clients compare the words.
"""

import json
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from allyouneed.serve.request_record import current_record

LIBRETRANSLATE = ("/translate", "/detect", "/languages", "/frontend/settings")
MISSING_KEY, INVALID_KEY = "missing_api_key", "invalid_api_key"  # codes of refusals with 401
LIBRETRANSLATE_KEYS = {
    MISSING_KEY: (400, "Please contact the server operator to get an API key"),
    INVALID_KEY: (403, "Invalid API key"),
}
# Bytes of JSON, and characters. With the longest request id, a whole error has at most 4 KiB.
MAX_MESSAGE, MAX_PARAM = 2816, 64
LONGEST_ESCAPE = 12  # bytes of one character in JSON: two escaped surrogates
TYPES = {401: "authentication_error", 404: "not_found_error", 413: "too_large_error", 429: "rate_limit_error"}


def path_of(scope: Scope) -> str:
    """Return the path of a request below the root path of the application."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


class Refusal(Exception):
    """An error response."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.retry = status, code, retry
        self.message, self.param = _bounded(message), None if param is None else param[:MAX_PARAM]

    @property
    def tree(self) -> dict[str, Any]:
        """The body in OpenAI's format."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": {**error, "request_id": current_record().id}}


def _bounded(message: str) -> str:
    """Return a message whose JSON has at most `MAX_MESSAGE` bytes. A message may quote what a client sent."""
    start = message[:MAX_MESSAGE]
    if len(start) == len(message) and len(json.dumps(start)) <= MAX_MESSAGE:
        return message
    return f"{start[: MAX_MESSAGE // LONGEST_ESCAPE]} ..."


class ErrorDetail(BaseModel):
    """What was wrong."""

    message: str
    type: str
    param: str | None
    code: str | None
    request_id: str


class ErrorResponse(BaseModel):
    """An error in OpenAI's format."""

    error: ErrorDetail


class PlainErrorResponse(BaseModel):
    """An error in LibreTranslate's format."""

    error: str
    request_id: str


REASONS = {
    400: "The request is invalid",
    401: "The API key is missing or invalid",
    403: "The API key is invalid",
    404: "There is no such model",
    408: "The body of the request did not arrive in time",
    413: "The request is too large",
    429: "The queue is full, or a limit of this client is reached; try again after Retry-After seconds",
    500: "A bug in the server",
    503: "The server is shutting down, or the request exceeded its deadline",
}


def fail_with(message: str) -> WrapValidator:
    """Return a field validator with one message for all failures, instead of one for each member of a union."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(message) from None

    return WrapValidator(check)


def error_responses(*statuses: int, plain: bool = False) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of an endpoint's error responses."""
    return {
        status: {"description": REASONS[status], "model": PlainErrorResponse if plain else ErrorResponse}
        for status in statuses
    }


def refusal_response(request: Request, refusal: Exception) -> Response:
    """Return a refusal in the format of its endpoint."""
    assert isinstance(refusal, Refusal)
    plain, request_id = path_of(request.scope) in LIBRETRANSLATE, current_record().id
    if plain and refusal.code in LIBRETRANSLATE_KEYS:
        refusal = Refusal(*LIBRETRANSLATE_KEYS[refusal.code])
    tree = {"error": refusal.message, "request_id": request_id} if plain else refusal.tree
    headers = {"X-Request-Id": request_id}  # also where no middleware sets it: after an unexpected exception
    headers |= {} if refusal.retry is None else {"Retry-After": str(refusal.retry)}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    # json.dumps escapes non-ASCII characters: a message may quote text that UTF-8 cannot encode.
    return Response(json.dumps(tree), refusal.status, headers, "application/json")


def http_error_response(request: Request, error: Exception) -> Response:
    """Return the response for errors of the framework: unknown paths, wrong methods, unreadable bodies."""
    assert isinstance(error, HTTPException)
    response = refusal_response(request, Refusal(error.status_code, str(error.detail)))
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


def validation_error_response(request: Request, error: Exception) -> Response:
    """Return the response for a request that does not match the schema of its endpoint."""
    assert isinstance(error, RequestValidationError)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if any(tuple(one["loc"]) == ("body",) for one in error.errors()) and not (
        kind.startswith("application/") and kind.endswith("json")
    ):
        return refusal_response(
            request, Refusal(400, "the body should be JSON, with the header Content-Type: application/json")
        )
    return refusal_response(request, validation_refusal(error.errors()))


def validation_refusal(errors: Any) -> Refusal:
    """Return the refusal for pydantic's validation errors."""
    first = errors[0]
    place = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        place, message = [], "the body is not JSON"
    elif not place and first["type"] in ("model_attributes_type", "missing"):
        message = "the body should be a JSON object"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    where = ".".join(place)
    return Refusal(400, f"{where}: {message}{more}" if where else f"{message}{more}", param=place[0] if place else None)


def internal_error_response(request: Request, error: Exception) -> Response:
    """Return the response for unexpected exceptions. The traceback goes to the server's log, not to the client."""
    return refusal_response(request, Refusal(500, "internal error"))
