"""What a server refuses, and how it says so: every answer that is no success has a type, a status and a reason.

Two dialects: LibreTranslate's endpoints say {"error": text}, all others say what OpenAI's API says,
{"error": {"message", "type", "param", "code"}}.
"""

import json
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from starlette.exceptions import HTTPException
from starlette.responses import Response

LIBRETRANSLATE = ("/translate", "/detect", "/languages", "/frontend/settings")
TYPES = {401: "authentication_error", 404: "not_found_error", 413: "too_large_error", 429: "rate_limit_error"}


class Refusal(Exception):
    """An answer that is no success."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry = status, message, param, code, retry

    @property
    def tree(self) -> dict[str, Any]:
        """The body, as OpenAI's API has it."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class Problem(BaseModel):
    """What was wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class Problems(BaseModel):
    """An answer that is no success."""

    error: Problem


class PlainProblem(BaseModel):
    """An answer that is no success, in LibreTranslate's words."""

    error: str


REASONS = {
    400: "The request asks for something that cannot be",
    401: "A key is needed, or the given one is none of the server's",
    404: "There is no such model",
    408: "The body of the request did not come in time",
    413: "The request is larger than the server takes",
    429: "Too many requests wait already; try again after Retry-After seconds",
    500: "A bug of the server",
    503: "The server is shutting down, or the request took longer than its deadline",
}


def otherwise(message: str) -> WrapValidator:
    """For a field: one message for all that does not fit, instead of one for each form that the value might have."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(message) from None

    return WrapValidator(check)


def described(*statuses: int, plain: bool = False) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI description: what an endpoint may answer beside a success."""
    return {
        status: {"description": REASONS[status], "model": PlainProblem if plain else Problems} for status in statuses
    }


def answer_refusal(request: Request, refusal: Exception) -> Response:
    """A refusal as an answer in the dialect of its endpoint."""
    assert isinstance(refusal, Refusal)
    tree = {"error": refusal.message} if request.url.path in LIBRETRANSLATE else refusal.tree
    headers = {} if refusal.retry is None else {"Retry-After": str(refusal.retry)}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    # Escaped: a message may quote text that UTF-8 cannot hold.
    return Response(json.dumps(tree), refusal.status, headers, "application/json")


def answer_http(request: Request, error: Exception) -> Response:
    """What the framework refuses by itself: unknown paths, methods, bodies that are not readable."""
    assert isinstance(error, HTTPException)
    response = answer_refusal(request, Refusal(error.status_code, str(error.detail)))
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


def answer_invalid(request: Request, error: Exception) -> Response:
    """What does not fit the description of an endpoint."""
    assert isinstance(error, RequestValidationError)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if any(tuple(one["loc"]) == ("body",) for one in error.errors()) and not (
        kind.startswith("application/") and kind.endswith("json")
    ):
        return answer_refusal(
            request, Refusal(400, "the body should be JSON, and say so: Content-Type: application/json")
        )
    return answer_refusal(request, invalid(error.errors()))


def invalid(errors: Any) -> Refusal:
    """A refusal from what pydantic found."""
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


def answer_bug(request: Request, error: Exception) -> Response:
    """Everything else; the traceback goes to the server's log, not to the client."""
    return answer_refusal(request, Refusal(500, "internal error"))
