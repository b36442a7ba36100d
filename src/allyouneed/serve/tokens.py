"""`/tokenize` and `/detokenize`: the ids that a model reads for a text, and back."""

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field, StrictInt, StrictStr

from allyouneed.config import Config
from allyouneed.serve.backend import Backend
from allyouneed.serve.errors import Refusal, error_responses, fail_with
from allyouneed.serve.models import Served
from allyouneed.serve.score import Texts
from allyouneed.text.tokenizer import Tokenizer

Side = Literal["source", "target"]
MAX_IDS = 1 << 24
Ids = Annotated[list[Annotated[StrictInt, Field(ge=0, lt=MAX_IDS)]], fail_with("should be a list of token ids")]


class TokenizeRequest(Config):
    """Texts to tokenize. `side`: the tokenizer of a model with two; the source's by default."""

    model: StrictStr
    text: Texts
    side: Side | None = None


class TokenizedText(BaseModel):
    """The tokens of one text."""

    count: int
    ids: list[int]
    tokens: list[str]


class TokenizeResponse(BaseModel):
    """The tokens of each text, in order."""

    model: str
    side: Side
    texts: list[TokenizedText]


class DetokenizeRequest(Config):
    """Ids of one text."""

    model: StrictStr
    ids: Ids
    side: Side | None = None


class DetokenizeResponse(BaseModel):
    """The text of ids, without special tokens."""

    model: str
    side: Side
    text: str


def router(backend: Backend) -> APIRouter:
    """Return `/tokenize` and `/detokenize`."""
    router = APIRouter(tags=["tokens"])

    @router.post("/tokenize", responses=error_responses(400, 401, 404, 408, 413, 429, 500, 503))
    async def tokenize(body: TokenizeRequest) -> TokenizeResponse:
        """Return the ids that a model reads for texts, and the names of their tokens."""
        served = backend.served(body.model)
        texts = [body.text] if isinstance(body.text, str) else body.text
        backend.check_texts(texts, "text")
        side = _side(served, body.side)
        found = await backend.in_thread(_tokenize, served, texts, side)
        return TokenizeResponse(model=served.name, side=side, texts=found)

    @router.post("/detokenize", responses=error_responses(400, 401, 404, 408, 413, 429, 500, 503))
    async def detokenize(body: DetokenizeRequest) -> DetokenizeResponse:
        """Return the text of ids."""
        served = backend.served(body.model)
        side = _side(served, body.side)
        tokenizer = _tokenizer(served, side)
        if any(number >= tokenizer.size for number in body.ids):
            raise Refusal(400, f"ids: {max(body.ids)} is not one of {tokenizer.size:,} ids", param="ids")
        text = await backend.in_thread(tokenizer.decode, body.ids)
        return DetokenizeResponse(model=served.name, side=side, text=text)

    return router


def _side(served: Served, asked: Side | None) -> Side:
    """Return the side whose tokenizer is used, or refuse a side that the model does not have."""
    codec = served.bundle.codec
    side: Side = asked or ("source" if codec.source is not None else "target")
    if (codec.source if side == "source" else codec.target) is None:
        raise Refusal(400, f"side: {served.name} has no {side}", param="side")
    return side


def _tokenizer(served: Served, side: Side) -> Tokenizer:
    codec = served.bundle.codec
    tokenizer = codec.source if side == "source" else codec.target
    assert tokenizer is not None
    return tokenizer


def _tokenize(served: Served, texts: Sequence[str], side: Side) -> list[TokenizedText]:
    tokenizer, codec = _tokenizer(served, side), served.bundle.codec
    found = codec.encode_sources(texts) if side == "source" else tokenizer.encode_batch(texts)
    return [TokenizedText(count=len(ids), ids=ids, tokens=tokenizer.names(ids)) for ids in found]
