"""Requests and responses of LibreTranslate's endpoints."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, StrictStr, field_validator
from pydantic_core import PydanticCustomError

from allyouneed.config import Config
from allyouneed.serve.errors import fail_with


def _require_text(value: str | list[str]) -> str | list[str]:
    if not value:
        raise PydanticCustomError("missing", "Field required")  # LibreTranslate treats an empty text as a missing one
    return value


NotEmpty = AfterValidator(_require_text)


Term = Annotated[tuple[StrictStr, ...], Field(min_length=1)]  # a source term and its targets; alone it is kept


class TranslateRequest(Config):
    """Texts to translate. `glossary`: terms that translations must use. `prefix`: what each of them begins with.

    `model`: the name of the model that translates; by default the first one of these languages.
    """

    q: Annotated[StrictStr | list[StrictStr], fail_with("should be a text or a list of texts"), NotEmpty]
    source: StrictStr
    target: StrictStr
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0)] = 0
    glossary: Annotated[tuple[Term, ...], fail_with("should be a list of [source term, target], in JSON")] = ()
    prefix: StrictStr = ""
    model: StrictStr | None = None
    api_key: StrictStr | None = None
    secret: StrictStr | None = None  # sent by LibreTranslate's own page; not needed here

    @field_validator("format", mode="before")
    @classmethod
    def _default_format(cls, value: Any) -> Any:
        return value or "text"  # clients send null and an empty text for the default

    @field_validator("alternatives", mode="before")
    @classmethod
    def _parse_number(cls, value: Any) -> Any:
        """Convert the digits that a form sends."""
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            return int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError("should be a whole number")
        return value


class DetectRequest(Config):
    """A text whose language is to be detected."""

    q: Annotated[StrictStr, NotEmpty]
    api_key: StrictStr | None = None


class Detected(BaseModel):
    """A language, and the confidence in percent."""

    confidence: float
    language: str


class TranslateResponse(BaseModel):
    """The translation of a text, or lists for a list of texts.

    `unknown`: the words that the model's vocabulary cannot represent; absent if there are none.
    `warnings`: why a translation may be wrong, for example a repeated phrase; absent if there are none.
    """

    translatedText: str | list[str]
    detectedLanguage: Detected | list[Detected] | None = None
    alternatives: list[str] | list[list[str]] | None = None
    unknown: list[str] | list[list[str]] | None = None
    warnings: list[str] | list[list[str]] | None = None


class Language(BaseModel):
    """A language, and the languages into which it can be translated."""

    code: str
    name: str
    targets: list[str]


class LanguageName(BaseModel):
    """A language."""

    code: str
    name: str


class Languages(BaseModel):
    """The languages that a page selects at first."""

    source: LanguageName
    target: LanguageName


class FrontendSettings(BaseModel):
    """The settings of LibreTranslate's page."""

    apiKeys: bool
    charLimit: int
    filesTranslation: bool
    frontendTimeout: int
    keyRequired: bool
    language: Languages
    suggestions: bool
    supportedFilesFormat: list[str]
