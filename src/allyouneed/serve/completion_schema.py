"""Requests and responses of OpenAI's endpoints."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr, ValidationInfo, field_validator

from allyouneed.config import Config
from allyouneed.decode.sample import MIN_TEMPERATURE
from allyouneed.serve.errors import fail_with

MAX_STOPS, LONGEST_STOP = 4, 100  # stop texts, and characters of each
Finish = Literal["stop", "length"]
Stop = Annotated[StrictStr, Field(min_length=1, max_length=LONGEST_STOP)]
Stops = Annotated[
    Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)],
    fail_with(f"should be at most {MAX_STOPS} stop texts, each of 1 to {LONGEST_STOP} characters"),
]
Prompts = Annotated[
    StrictStr | list[StrictStr],
    fail_with("should be a text or a list of texts; token ids are not supported, send text"),
]
Unknown = list[str] | list[list[str]]
UNSUPPORTED = fail_with("not supported here; leave it out")
Zero = Annotated[float, Field(ge=0, le=0), UNSUPPORTED]


class StreamOptions(Config):
    """What a stream contains besides text."""

    include_usage: StrictBool = False
    include_obfuscation: StrictBool | None = None  # padding against traffic analysis; accepted, never sent


class CompletionSettings(Config):
    """The fields that OpenAI's requests have in common, plus `top_k` and `min_p`."""

    model: StrictStr
    max_tokens: Annotated[StrictInt, Field(ge=0)] | None = None  # None: 16, or with a source its length + 50
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[StrictInt, Field(ge=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[StrictInt, Field(ge=1)] | None = None
    stop: Stops | None = None
    seed: Annotated[StrictInt, Field(ge=0, lt=1 << 63)] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    user: StrictStr | None = None  # accepted and ignored
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0), UNSUPPORTED] | None = None

    @field_validator("temperature")
    @classmethod
    def _not_tiny(cls, value: float | None) -> float | None:
        if value is not None and 0 < value < MIN_TEMPERATURE:
            raise ValueError(f"too close to 0; use 0 (the most probable token) or at least {MIN_TEMPERATURE}")
        return value

    @field_validator("stream_options")
    @classmethod
    def _requires_stream(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if value is not None and not info.data.get("stream"):
            raise ValueError("only with stream")
        return value

    @property
    def stops(self) -> list[str]:
        """All texts that end a completion."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class CompletionRequest(CompletionSettings):
    """OpenAI's request. Unsupported fields accept only their neutral value."""

    prompt: Prompts
    logprobs: Annotated[StrictInt, Field(ge=0)] | None = None
    echo: StrictBool | None = None
    best_of: StrictInt | None = None
    suffix: Annotated[StrictStr, Field(max_length=0), UNSUPPORTED] | None = None

    @field_validator("best_of")
    @classmethod
    def _equals_n(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and value != (info.data.get("n") or 1):
            raise ValueError("should equal n; leave it out")
        return value

    @property
    def prompts(self) -> list[str]:
        """All prompts."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


class Logprobs(BaseModel):
    """The tokens of a text with their log-probabilities, and the most probable alternatives."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class Choice(BaseModel):
    """One completion."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: Finish | None


class Usage(BaseModel):
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    """A response; in a stream, one part of it."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


class UnknownCompletion(Completion):
    """A response to a source with words that the model's vocabulary does not have: a list, or one for each prompt."""

    unknown: Unknown


class ModelCard(BaseModel):
    """A model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "allyouneed"


class ModelList(BaseModel):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
