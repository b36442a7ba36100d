"""Requests and responses of OpenAI's chat endpoint."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr, model_validator

from allyouneed.config import Config
from allyouneed.serve.completion_schema import UNSUPPORTED, CompletionSettings, Finish, Unknown, Usage
from allyouneed.serve.errors import fail_with

Role = Literal["system", "developer", "user", "assistant"]


class TextContent(Config):
    """A part of a message."""

    type: Annotated[Literal["text"], fail_with("only text is supported")]
    text: StrictStr


class Message(Config):
    """One turn of a conversation."""

    role: Annotated[Role, fail_with("should be system, developer, user or assistant")]
    content: Annotated[
        StrictStr | Annotated[list[TextContent], Field(fail_fast=True)],
        fail_with("should be a text, or a list of texts"),
    ]
    name: StrictStr | None = None  # accepted and ignored
    refusal: None = None  # of an earlier response

    @property
    def text(self) -> str:
        """The whole content."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class TextFormat(Config):
    """The only format of a response."""

    type: Annotated[Literal["text"], fail_with("only text is supported")]


class ChatRequest(CompletionSettings):
    """OpenAI's request, plus `top_k` and `min_p`. Unsupported fields accept only their neutral value."""

    # fail_fast: one error, not one for each
    messages: Annotated[list[Message], Field(min_length=1, max_length=1024, fail_fast=True)]
    max_completion_tokens: Annotated[StrictInt, Field(ge=0)] | None = None  # None: all that the server allows
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0)] | None = None
    response_format: TextFormat | None = None
    store: Annotated[Literal[False], UNSUPPORTED] | None = None
    tools: Annotated[list[Any], Field(max_length=0), UNSUPPORTED] | None = None
    tool_choice: Annotated[Literal["none", "auto"], UNSUPPORTED] | None = None
    modalities: Annotated[list[Literal["text"]], UNSUPPORTED] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "ChatRequest":
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens are the same; send one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: only with logprobs")
        return self

    @property
    def most(self) -> tuple[str, int | None]:
        """The maximum number of tokens, after the name of its field."""
        if self.max_tokens is not None:
            return "max_tokens", self.max_tokens
        return "max_completion_tokens", self.max_completion_tokens


class TokenLogprob(BaseModel):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TokenLogprob):
    """A token of a response, and the most probable tokens in its place."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    """The tokens of a response."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class ChatMessage(BaseModel):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class ChatDelta(BaseModel):
    """The next part of an answer."""

    content: str


class FirstChatDelta(ChatDelta):
    """The first part of an answer."""

    role: Literal["assistant"] = "assistant"


class ChatChunkChoice(BaseModel):
    """A part of one answer."""

    index: int
    delta: FirstChatDelta | ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class ChatCompletion(BaseModel):
    """A response."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None


class UnknownChatCompletion(ChatCompletion):
    """A response to a source with words that the model's vocabulary does not have."""

    unknown: Unknown


class ChatChunk(BaseModel):
    """A part of a streamed response."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class UnknownChatChunk(ChatChunk):
    """The first part, with words that the model's vocabulary does not have."""

    unknown: Unknown
