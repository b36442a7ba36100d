"""The settings of a server. They bound everything that a client can request."""

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from allyouneed.config import Config

Port = Annotated[int, Field(ge=0, le=65535)]
# Fields that `--limit` does not set.
NOT_LIMITS = ("host", "port", "hosts", "runs", "keys", "cors", "access_log", "log_level", "root_path", "trust_proxy")
HOST_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
# Browsers send the Origin header in lower case, without a path and without a trailing slash.
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+")


class ServeConfig(Config):
    """Where to listen, which clients to accept, and how much they may request."""

    host: str = "127.0.0.1"
    port: Port = 8000  # 0: any free port
    hosts: tuple[str, ...] = ()  # names by which clients may address the server, besides localhost; "*": any name
    runs: str = "runs"  # the folder whose runs are shown
    keys: tuple[str, ...] = ()  # API keys; empty: no key is required
    cors: tuple[str, ...] = ()  # origins whose pages may read responses
    access_log: Literal["text", "json", "none"] = "text"  # a line for each request; json: all lines of the log
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # of the rest of the log

    root_path: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._~-]+)*$")] = ""  # below which a proxy shows the server
    trust_proxy: tuple[str, ...] = ()  # addresses of proxies whose X-Forwarded-* headers are used

    batch: PositiveInt = 64  # rows that a model decodes in parallel
    queue: PositiveInt = 512  # rows that may wait for a model; more are refused with 429
    client_queue: PositiveInt = 256  # of these, rows of one client: a valid key, else an address
    deadline: PositiveFloat = 60.0  # seconds until a request times out
    arrival: PositiveFloat = 30.0  # seconds for a request's headers, for its body, and between reads of a response
    drain: PositiveFloat = 30.0  # seconds that running requests may take after SIGTERM
    connections: PositiveInt = 1024  # open connections
    client_connections: PositiveInt = 256  # open connections of one address
    client_requests: PositiveInt = 256  # requests of one client that are processed in parallel
    threads: PositiveInt = 2  # of each kind: texts to tokenize, maps and programs that are processed in parallel

    max_backlog: PositiveInt = 1 << 20  # bytes of tokens that a stream's reader may lag behind; then decoding pauses
    max_response: PositiveInt = 1 << 25  # bytes of tokens of a response that is not a stream
    max_body: PositiveInt = 1 << 20  # bytes of a request
    max_characters: PositiveInt = 20_000  # of all texts of a request
    max_texts: PositiveInt = 64  # texts of a request, or lines to translate
    max_input_tokens: PositiveInt = 1024  # of one text
    max_tokens: PositiveInt = 1024  # of one completion, or of one sentence if the request does not limit them
    max_n: PositiveInt = 8  # completions of one prompt
    max_beam: PositiveInt = 64  # beam width of a translation
    max_terms: PositiveInt = 100  # of the glossary of a request
    max_logprobs: PositiveInt = 20  # alternatives of one token
    max_attention_tokens: PositiveInt = 256  # of one text whose attention maps are shown

    @field_validator("cors")
    @classmethod
    def _are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if origin != "*" and not ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is not an origin; write https://example.org, or * for all")
        return value

    @field_validator("hosts")
    @classmethod
    def _are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name != "*" and not HOST_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a host name; write example.org without a port, or * for all")
        return value

    @field_validator("trust_proxy")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            try:
                ipaddress.ip_network(address)
            except ValueError:
                raise ValueError(f"{address!r} is not an address; write 10.0.0.1, or a network: 10.0.0.0/8") from None
        return value

    @field_validator("keys")
    @classmethod
    def _can_be_sent(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not key or not key.isascii() or not key.isprintable() or " " in key for key in value):
            raise ValueError("a key should be printable ASCII without spaces, so that a header can carry it")
        return value
