"""The settings of a server. Everything that a client can ask for is bounded here."""

import re
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from allyouneed.config import Config

Port = Annotated[int, Field(ge=0, le=65535)]
NO_LIMITS = ("host", "port", "runs", "keys", "cors")  # fields that bound nothing


# A browser says where a page is from in small letters, without a path, not even a slash.
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+")


class ServeConfig(Config):
    """Where to listen, whom to answer, and how much."""

    host: str = "127.0.0.1"
    port: Port = 8000  # 0: any that is free
    runs: str = "runs"  # the folder whose runs are shown
    keys: tuple[str, ...] = ()  # a request must carry one of them; none: everybody may ask
    cors: tuple[str, ...] = ()  # origins whose pages may read answers

    batch: PositiveInt = 64  # rows of a model that decode side by side
    queue: PositiveInt = 256  # rows of a model that wait; more are refused with 429
    deadline: PositiveFloat = 60.0  # seconds until a request is given up
    arrival: PositiveFloat = 30.0  # seconds for a request's headers, for its body, and to take some of an answer
    drain: PositiveFloat = 30.0  # seconds that running requests have left after SIGTERM
    connections: PositiveInt = 1024  # at a time; more are refused with 503
    workers: PositiveInt = 2  # attention maps, programs and scores at a time

    max_body: PositiveInt = 1 << 20  # bytes of a request
    max_characters: PositiveInt = 20_000  # of all texts of a request
    max_texts: PositiveInt = 64  # texts of a request, or lines to translate
    max_input_tokens: PositiveInt = 1024  # of one text
    max_tokens: PositiveInt = 1024  # of one answer
    max_n: PositiveInt = 8  # answers to one text
    max_beam: PositiveInt = 64  # hypotheses side by side, of one text to translate
    max_logprobs: PositiveInt = 20  # alternatives of one token
    max_attention_tokens: PositiveInt = 256  # of one text whose maps are shown

    @field_validator("cors")
    @classmethod
    def _are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin; one looks like https://example.org, and * stands for all")
        return value

    @field_validator("keys")
    @classmethod
    def _can_be_sent(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not key or not key.isascii() or not key.isprintable() or " " in key for key in value):
            raise ValueError("a key should be printable ASCII without blanks, so that a header can carry it")
        return value
