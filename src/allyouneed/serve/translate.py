"""LibreTranslate's endpoints: /translate, /languages, /detect, /frontend/settings.

Bodies may be forms or JSON. Texts are translated line by line, because models are trained on lines. With `format=html`
the text between the tags is translated (`documents/html_document.py`).

Detection chooses the source language whose vocabulary fits the text best. With a single source language, the confidence
is simply the fraction of the text's tokens that are in its vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from babel import Locale, UnknownLocaleError
from fastapi import APIRouter, Request
from pydantic import ValidationError

from allyouneed.config import Config
from allyouneed.documents.html_document import HtmlDocument
from allyouneed.documents.line_document import LineDocument
from allyouneed.errors import DataError
from allyouneed.serve.backend import Backend, cancel_on_disconnect
from allyouneed.serve.bodies import FORMS, content_type, parse_form, parse_json
from allyouneed.serve.errors import Refusal, error_responses, validation_refusal
from allyouneed.serve.models import Served
from allyouneed.serve.text_search import TextRules, require_capacity, search_all, translate_pages
from allyouneed.serve.translate_schema import (
    Detected,
    DetectRequest,
    FrontendSettings,
    Language,
    LanguageName,
    Languages,
    TranslateRequest,
    TranslateResponse,
)
from allyouneed.serve.unknown import unknown_words_of
from allyouneed.text.glossary import Glossary
from allyouneed.text.output_checks import EXPLAINED, doubts_of
from allyouneed.text.specials import UNK

AUTO = "auto"
DETECTED = 2000  # characters of a text that detection reads
Body = TypeVar("Body", bound=Config)
Pairs = dict[tuple[str, str], Served]  # models by source and target language


def router(backend: Backend) -> APIRouter:
    """Return the endpoints. They accept the API key as a header or as a field of the body."""
    router = APIRouter(tags=["LibreTranslate"])
    _add_translation(router, backend)
    _add_languages(router, backend)
    return router


def _pairs(backend: Backend, model: str | None = None) -> Pairs:
    """Return the models that translate, or only the one of a name. The first model of a pair of languages is used."""
    chosen = reversed(backend.models.values()) if model is None else [backend.served(model)]
    return {served.languages: served for served in chosen if served.languages}


def _add_translation(router: APIRouter, backend: Backend) -> None:
    """Add `/translate` and `/detect`."""

    @router.post(
        "/translate",
        openapi_extra=_form_or_json(TranslateRequest),
        response_model_exclude_none=True,
        responses=error_responses(400, 403, 404, 408, 413, 429, 500, 503, plain=True),
    )
    async def translate(request: Request) -> TranslateResponse:
        """Translate texts from one language into another."""
        body = await _body(request, TranslateRequest)
        texts = [body.q] if isinstance(body.q, str) else body.q
        most = min(backend.config.max_n, backend.config.max_beam)  # each alternative needs a beam of its own
        if body.alternatives >= most:
            raise Refusal(400, f"alternatives: at most {most - 1}", param="alternatives")
        backend.check_texts(texts, "q")
        found = await cancel_on_disconnect(request, _translate(backend, _pairs(backend, body.model), body, texts))
        single = isinstance(body.q, str)
        best, others = [one.text for one in found], [one.alternatives for one in found]
        detected = [one.detected for one in found if one.detected is not None]
        unknown, warnings = [one.unknown for one in found], [one.warnings for one in found]
        return TranslateResponse(
            translatedText=best[0] if single else best,
            detectedLanguage=None if body.source != AUTO else detected[0] if single else detected,
            alternatives=None if not body.alternatives else others[0] if single else others,
            unknown=None if not any(unknown) else unknown[0] if single else unknown,
            warnings=None if not any(warnings) else warnings[0] if single else warnings,
        )

    @router.post(
        "/detect",
        openapi_extra=_form_or_json(DetectRequest),
        responses=error_responses(400, 403, 408, 413, 500, 503, plain=True),
    )
    async def detect(request: Request) -> list[Detected]:
        """Guess the language of a text, among the source languages of the served models."""
        body = await _body(request, DetectRequest)
        backend.check_texts([body.q], "q")
        return await backend.in_thread(_detect, list(_pairs(backend).values()), body.q)


def _add_languages(router: APIRouter, backend: Backend) -> None:
    """Add `/languages` and `/frontend/settings`."""

    @router.get("/languages", responses=error_responses(500, 503, plain=True))
    async def languages() -> list[Language]:
        """List all languages, and the languages into which each can be translated."""
        pairs = _pairs(backend)
        codes = dict.fromkeys(code for pair in pairs for code in pair)
        return [
            Language(code=code, name=_name(code), targets=[target for source, target in pairs if source == code])
            for code in sorted(codes)
        ]

    @router.get("/frontend/settings", responses=error_responses(500, 503, plain=True))
    async def settings() -> FrontendSettings:
        """Return the settings of LibreTranslate's page."""
        source, target = next(iter(_pairs(backend)), (AUTO, AUTO))
        keys = bool(backend.config.keys)
        return FrontendSettings(
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


def _form_or_json(model: type[Config]) -> dict[str, Any]:
    """Return the OpenAPI description of a body that may be a form or JSON."""
    schema = model.model_json_schema()
    kinds = ("application/json", "application/x-www-form-urlencoded")
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}


async def _body(request: Request, model: type[Body]) -> Body:
    """Parse the body of a request, a form or JSON."""
    kind, content = content_type(request.headers), await request.body()
    if kind in FORMS:
        tree = await parse_form(content, request.headers)
    elif kind == "application/json":
        tree = parse_json(content)
    else:
        raise Refusal(400, "the body should be a form or JSON, with a matching Content-Type")
    if not isinstance(tree, dict):
        raise Refusal(400, "the body should be an object with q, source and target")
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        missing = [str(one["loc"][0]) for one in error.errors() if one["type"] == "missing"]
        if missing:
            raise Refusal(400, f"Invalid request: missing {missing[0]} parameter") from None
        raise validation_refusal(error.errors()) from None


@dataclass(frozen=True)
class Translated:
    """A translation, its alternatives, the detected language, unknown words of the source, and warnings."""

    text: str
    alternatives: list[str]
    detected: Detected | None
    unknown: list[str]
    warnings: list[str]


async def _translate(backend: Backend, pairs: Pairs, body: TranslateRequest, texts: Sequence[str]) -> list[Translated]:
    """Return the translation of each text."""
    known = {code for pair in pairs for code in pair}
    for code in (body.source, body.target):
        if code not in known and code != AUTO:
            raise Refusal(400, f"{code[:20]} is not supported")
    documents = await _documents(backend, texts, body.format)
    if sum(len(document.units) for document in documents) > max(backend.config.max_texts, len(texts)):
        parts = "lines" if body.format == "text" else "pieces of text between tags"
        raise Refusal(400, f"q: more than {backend.config.max_texts} {parts} in one request", param="q")
    plain = ["\n".join(document.units) for document in documents]
    chosen = [await _choose(backend, pairs, body, text) for text in plain]
    models = [served for served, _ in chosen]
    require_capacity(backend, models, [len(document.units) for document in documents])
    unknown = await unknown_words_of(backend, list(zip(models, plain, strict=True)))
    found = await _translated(backend, models, documents, body)
    return [
        Translated(best, [other for other in dict.fromkeys(others) if other != best], detected, words, warnings)
        for (best, others, warnings), (_, detected), words in zip(found, chosen, unknown, strict=True)
    ]


async def _translated(
    backend: Backend,
    models: Sequence[Served],
    documents: "Sequence[LineDocument | HtmlDocument]",
    body: TranslateRequest,
) -> list[tuple[str, list[str], list[str]]]:
    """Return the best translation of each document, further ones, and warnings."""
    rules = _rules(backend, body)
    pages = [document for document in documents if isinstance(document, HtmlDocument)]
    if pages:
        results = await translate_pages(backend, models, pages, rules)
        return [(page.text(one.segments), [], one.warnings()) for page, one in zip(pages, results, strict=True)]
    lines = [document for document in documents if isinstance(document, LineDocument)]
    found = await search_all(backend, models, [document.units for document in lines], rules)
    translated = []
    for document, units in zip(lines, found, strict=True):
        best, *others = (
            document.join(units, rank) for rank in range(min(max(map(len, units), default=1), 1 + body.alternatives))
        )
        pairs = zip(document.units, units, strict=True)
        doubts = {doubt for unit, ranked in pairs for doubt in doubts_of(unit, ranked[0])}
        translated.append((best, others, [EXPLAINED[one] for one in EXPLAINED if one in doubts]))
    return translated


def _rules(backend: Backend, body: TranslateRequest) -> TextRules:
    """Return how the texts of a request are translated. Refuse a glossary or a prefix that does not fit."""
    most = backend.config.max_terms
    if len(body.glossary) > most:
        raise Refusal(400, f"glossary: {len(body.glossary)} terms; at most {most} in one request", param="glossary")
    backend.check_texts([body.prefix], "prefix")
    backend.check_texts(["".join(text for term in body.glossary for text in term)], "glossary")
    if body.prefix and body.format == "html":
        raise Refusal(400, "prefix: is for format=text; a page has no start to prescribe", param="prefix")
    try:
        glossary = Glossary(body.glossary) if body.glossary else None
    except DataError as error:
        raise Refusal(400, f"glossary: {error}", param="glossary") from None
    html = body.format == "html"
    return TextRules(1 if html else 1 + body.alternatives, glossary, body.prefix)


async def _documents(
    backend: Backend, texts: Sequence[str], kind: Literal["text", "html"]
) -> "list[LineDocument | HtmlDocument]":
    """Return the texts as documents."""
    if kind == "text":
        return [LineDocument(text) for text in texts]
    try:
        return await backend.in_thread(lambda: [HtmlDocument(text) for text in texts])
    except DataError as error:
        raise Refusal(400, f"q: {error}", param="q") from None


async def _choose(backend: Backend, pairs: Pairs, body: TranslateRequest, text: str) -> tuple[Served, Detected | None]:
    """Return the model that translates a text, and the detected language."""
    detected, source = None, body.source
    if source == AUTO:
        candidates = [served for (_, target), served in pairs.items() if target == body.target]
        found = await backend.in_thread(_detect, candidates, text)
        if not found:
            raise Refusal(400, f"{body.target[:20]} is not supported as a target language")
        detected, source = found[0], found[0].language
    if (source, body.target) not in pairs:
        raise Refusal(400, f"{source[:20]} cannot be translated into {body.target[:20]} here")
    return pairs[source, body.target], detected


def _detect(candidates: Sequence[Served], text: str) -> list[Detected]:
    """Return the source languages, the most likely first."""
    found: dict[str, tuple[float, float]] = {}
    for served in candidates:
        assert served.languages is not None
        source = served.bundle.codec.source
        assert source is not None
        ids = source.encode(text[:DETECTED])
        known = sum(token != UNK for token in ids) / len(ids) if ids else 0.0
        # A vocabulary learned from a language needs few tokens for its texts.
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
