"""LibreTranslate's endpoints: /translate, /languages, /detect, /frontend/settings.

Forms and JSON are read alike. Texts are translated line by line, as models are trained on lines. `format=html` is
refused: markup would be translated with the text, and what comes back could not be trusted as markup.

A language is detected by asking which of the served source languages' vocabularies fits the text best; with a single
source language there is nothing to choose, and the confidence only says how much of the text its vocabulary knows.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qsl

from babel import Locale, UnknownLocaleError
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, StrictStr, ValidationError, field_validator
from starlette.exceptions import HTTPException

from allyouneed.config import Config
from allyouneed.serve.backend import Backend, unless_gone
from allyouneed.serve.errors import Refusal, described, invalid, otherwise
from allyouneed.serve.models import Served
from allyouneed.text.specials import UNK

AUTO = "auto"
DETECTED = 2000  # characters of a text that are looked at
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
FIELDS = 100  # of a form
Body = TypeVar("Body", bound=Config)


class TranslateRequest(Config):
    """What to translate."""

    q: Annotated[StrictStr | list[StrictStr], otherwise("should be a text or a list of texts")]
    source: StrictStr
    target: StrictStr
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0)] = 0
    api_key: StrictStr | None = None
    secret: StrictStr | None = None  # sent by LibreTranslate's own page; not needed here

    @field_validator("alternatives", mode="before")
    @classmethod
    def _a_number(cls, value: Any) -> Any:
        """A form sends digits."""
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            return int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError("should be a whole number")
        return value


class DetectRequest(Config):
    """The text whose language is asked for."""

    q: StrictStr
    api_key: StrictStr | None = None


class Detected(BaseModel):
    """A language, and how sure that is, in percent."""

    confidence: float
    language: str


class Translated(BaseModel):
    """A translation for each text; lists, if a list was asked for."""

    translatedText: str | list[str]
    detectedLanguage: Detected | list[Detected] | None = None
    alternatives: list[str] | list[list[str]] | None = None


class Language(BaseModel):
    """A language, and into which others it can be translated."""

    code: str
    name: str
    targets: list[str]


class LanguageName(BaseModel):
    """A language."""

    code: str
    name: str


class Languages(BaseModel):
    """What a page should choose at first."""

    source: LanguageName
    target: LanguageName


class Settings(BaseModel):
    """What LibreTranslate's page wants to know."""

    apiKeys: bool
    charLimit: int
    filesTranslation: bool
    frontendTimeout: int
    keyRequired: bool
    language: Languages
    suggestions: bool
    supportedFilesFormat: list[str]


def router(backend: Backend) -> APIRouter:
    """The endpoints; the key comes as a header or as a field of the body."""
    router = APIRouter(tags=["LibreTranslate"])
    pairs = {served.languages: served for served in reversed(backend.models.values()) if served.languages}

    @router.post(
        "/translate",
        openapi_extra=_both(TranslateRequest),
        response_model_exclude_none=True,
        responses=described(400, 401, 408, 413, 429, 500, 503, plain=True),
    )
    async def translate(request: Request) -> Translated:
        """Texts from one language into another."""
        body = await _body(request, TranslateRequest)
        backend.check_key(_bearer(request), body.api_key)
        texts = [body.q] if isinstance(body.q, str) else body.q
        if body.format == "html":
            raise Refusal(400, "format html is not supported; send text", param="format")
        most = min(backend.config.max_n, backend.config.max_beam)  # each takes a beam
        if body.alternatives >= most:
            raise Refusal(400, f"alternatives: at most {most - 1}", param="alternatives")
        backend.check_texts(texts, "q")
        found = await unless_gone(request, _translate(backend, pairs, body, texts))
        one = isinstance(body.q, str)
        best, others = [text for text, _, _ in found], [more for _, more, _ in found]
        detected = [language for _, _, language in found if language is not None]
        return Translated(
            translatedText=best[0] if one else best,
            detectedLanguage=None if body.source != AUTO else detected[0] if one else detected,
            alternatives=None if not body.alternatives else others[0] if one else others,
        )

    @router.post(
        "/detect",
        openapi_extra=_both(DetectRequest),
        responses=described(400, 401, 408, 413, 500, 503, plain=True),
    )
    async def detect(request: Request) -> list[Detected]:
        """The likely language of a text, among those that can be translated."""
        body = await _body(request, DetectRequest)
        backend.check_key(_bearer(request), body.api_key)
        backend.check_texts([body.q], "q")
        return await asyncio.to_thread(_detect, list(pairs.values()), body.q)

    @router.get("/languages", responses=described(500, 503, plain=True))
    async def languages() -> list[Language]:
        """All languages, and into which others each can be translated."""
        codes = dict.fromkeys(code for pair in pairs for code in pair)
        return [
            Language(code=code, name=_name(code), targets=[target for source, target in pairs if source == code])
            for code in sorted(codes)
        ]

    @router.get("/frontend/settings", responses=described(500, 503, plain=True))
    async def settings() -> Settings:
        """What LibreTranslate's page wants to know."""
        source, target = next(iter(pairs), (AUTO, AUTO))
        keys = bool(backend.config.keys)
        return Settings(
            apiKeys=keys,
            charLimit=backend.config.max_characters,
            filesTranslation=False,
            frontendTimeout=500,
            keyRequired=keys,
            language=Languages(
                source=LanguageName(code=source, name=_name(source)),
                target=LanguageName(code=target, name=_name(target)),
            ),
            suggestions=False,
            supportedFilesFormat=[],
        )

    return router


def _both(model: type[Config]) -> dict[str, Any]:
    """The OpenAPI description of a body that comes as a form or as JSON."""
    schema = model.model_json_schema()
    kinds = ("application/json", "application/x-www-form-urlencoded")
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}


async def _form(request: Request, kind: str) -> dict[str, Any]:
    """The fields of a form; one that comes several times is a list."""
    pairs: Sequence[tuple[str, Any]]
    try:
        # The framework reads bytes that are not UTF-8 as Latin-1, and those of a form that are not escaped always so.
        text = (await request.body()).decode()
        if kind == "multipart/form-data":
            async with request.form(max_files=0, max_fields=FIELDS) as form:
                pairs = form.multi_items()
        else:
            pairs = parse_qsl(text, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise Refusal(400, "the form holds bytes that are not UTF-8; send its texts in UTF-8") from None
    if len(pairs) > FIELDS:
        raise Refusal(400, f"a form of {len(pairs)} fields; at most {FIELDS}")
    tree: dict[str, Any] = {}
    for name, value in pairs:
        tree.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in tree.items()}


async def _body(request: Request, model: type[Body]) -> Body:
    """The body of a request, a form or JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "application/json":
            tree = await request.json()
        elif kind in FORMS:
            tree = await _form(request, kind)
        else:
            raise Refusal(400, "the body should be a form or JSON, and its Content-Type should say so")
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON") from None
    except HTTPException as error:
        raise Refusal(error.status_code, str(error.detail)) from None
    if not isinstance(tree, dict):
        raise Refusal(400, "the body should be an object with q, source and target")
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise invalid(error.errors()) from None


def _bearer(request: Request) -> str | None:
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return key if kind.lower() == "bearer" else None


async def _translate(
    backend: Backend, pairs: dict[tuple[str, str], Served], body: TranslateRequest, texts: Sequence[str]
) -> list[tuple[str, list[str], Detected | None]]:
    """For each text the translation, others, and the language that was found."""
    known = {code for pair in pairs for code in pair}
    for code in (body.source, body.target):
        if code not in known and code != AUTO:
            raise Refusal(400, f"{code[:20]} is not supported")
    lines = [text.splitlines() for text in texts]
    if sum(map(len, lines)) > max(backend.config.max_texts, len(texts)):
        raise Refusal(400, f"q: more than {backend.config.max_texts} lines in one request", param="q")
    chosen: list[tuple[Served, Detected | None]] = []
    for text in texts:
        detected, source = None, body.source
        if source == AUTO:
            able = [served for (_, target), served in pairs.items() if target == body.target]
            found = await asyncio.to_thread(_detect, able, text)
            if not found:
                raise Refusal(400, f"{body.target[:20]} is not supported as a target language")
            detected, source = found[0], found[0].language
        if (source, body.target) not in pairs:
            raise Refusal(400, f"{source[:20]} cannot be translated into {body.target[:20]} here")
        chosen.append((pairs[source, body.target], detected))
    said: list[list[list[str]]] = [[[""] for _ in of_text] for of_text in lines]
    for served in {served.name: served for served, _ in chosen}.values():
        places = [
            (number, line)
            for number, (mine, _) in enumerate(chosen)
            for line, content in enumerate(lines[number])
            if mine is served and content.strip()
        ]
        asked = [lines[number][line] for number, line in places]
        for (number, line), answers in zip(places, await _answers(backend, served, asked, body), strict=True):
            said[number][line] = answers
    return [
        (*_joined(texts[number], said[number], body.alternatives), detected)
        for number, (_, detected) in enumerate(chosen)
    ]


async def _answers(backend: Backend, served: Served, texts: Sequence[str], body: TranslateRequest) -> list[list[str]]:
    """The best answers to each text, as the model's recipe searches for them."""
    backend.engines[served.name].require_room(len(texts), "q")
    await backend.encode_sources(served, texts, "q")
    wanted = 1 + body.alternatives
    search = served.search.model_copy(update={"n_best": wanted, "beam": max(served.search.beam, wanted)})
    found = await backend.engines[served.name].do(backend.search(served, search), texts)
    return [[answer.text for answer in answers] for answers in found]


def _joined(text: str, lines: Sequence[Sequence[str]], alternatives: int) -> tuple[str, list[str]]:
    """The lines of a text as a text again, and its alternatives: each takes the next best answer to every line."""
    ends = [line[len(line.splitlines()[0]) :] if line.splitlines() else line for line in text.splitlines(keepends=True)]
    most = min(max((len(line) for line in lines), default=1), 1 + alternatives)
    best, *others = (
        "".join(line[min(rank, len(line) - 1)] + end for line, end in zip(lines, ends, strict=True))
        for rank in range(most)
    )
    return best, [other for other in dict.fromkeys(others) if other != best]


def _detect(candidates: Sequence[Served], text: str) -> list[Detected]:
    """Source languages, the likeliest first."""
    found: dict[str, tuple[float, float]] = {}
    for served in candidates:
        assert served.languages is not None
        source = served.bundle.codec.source
        assert source is not None
        ids = source.encode(text[:DETECTED])
        known = sum(token != UNK for token in ids) / len(ids) if ids else 0.0
        # A vocabulary that was made from a language needs few tokens for it.
        fit = known, -len(ids) / max(1, len(text[:DETECTED]))
        language = served.languages[0]
        found[language] = max(fit, found.get(language, fit))
    ranked = sorted(found, key=lambda language: found[language], reverse=True)
    return [Detected(confidence=round(100 * found[language][0], 1), language=language) for language in ranked]


def _name(code: str) -> str:
    try:
        return Locale.parse(code.replace("-", "_")).english_name or code
    except (UnknownLocaleError, ValueError):
        return code
