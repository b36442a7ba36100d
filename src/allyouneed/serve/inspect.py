"""What the page asks of models: which there are (`/api/models`), and who read whom (`/attention`).

The maps and the answer come from `inspection/inspect.py`, which knows every architecture. Maps are large, so they are
written as JSON where they are made, in a thread, and not once more by the framework.
"""

import tempfile
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field, StrictInt, StrictStr

from allyouneed.config import Config
from allyouneed.errors import UserError, unknown_name
from allyouneed.evaluation.measure import own_data
from allyouneed.folder import Bundle
from allyouneed.inspection.inspect import ANSWER, Axis, Part, as_json, look
from allyouneed.lab.cost.path_length import path_length
from allyouneed.mixers import MixerConfig
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.errors import Refusal, described
from allyouneed.serve.models import Served
from allyouneed.serve.thread_pool import ThreadPool, as_answer

PAGE = Path(__file__).parent / "page"
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
LENGTH = 32  # tokens between which a path is measured
WIDTH = 32  # of the layers it is measured with, or a little more: the width decides nothing
EXAMPLE = 60  # characters of a language model's example


class AttentionRequest(Config):
    """A text, and perhaps what should be said to it."""

    model: StrictStr
    text: Annotated[StrictStr, Field(max_length=20_000)]
    target: Annotated[StrictStr, Field(max_length=20_000)] | None = None  # None: what the model says, greedily
    max_tokens: Annotated[StrictInt, Field(ge=0, le=256)] | None = None  # of its own


class Layer(BaseModel):
    """The maps of one layer: for each head a row for each position that reads, a column for each that is read."""

    name: str
    layer: int
    part: Part
    rows: Axis
    columns: Axis
    heads: list[str]
    weights: list[list[list[float]]]


class Token(BaseModel):
    """A token, and what else it might have been."""

    text: str
    logprob: float
    given: bool
    best: list[tuple[str, float]]


class AttentionAnswer(BaseModel):
    """Who read whom; `source`, `target` and `input` are the names of rows and columns."""

    model: str
    source: list[str] | None
    target: list[str] | None
    input: list[str] | None
    answer: str
    said: list[Token]
    maps: list[Layer]
    note: str


class ModelInfo(BaseModel):
    """What the page knows of a model."""

    name: str
    kind: str
    about: str
    architecture: str
    parameters: int
    mixers: list[str]
    path: int | None  # layers until the first of 32 tokens can change the last; null: never, or not known
    steps: int | None  # operations one after another on that path
    maps: bool  # whether it weighs tokens; else influence is shown
    source: bool
    target: bool
    languages: list[str] | None
    example: str


def router(models: dict[str, Served], config: ServeConfig) -> APIRouter:
    """The models and their maps."""
    routes = APIRouter(tags=["page"])
    room = ThreadPool(config)
    infos: dict[str, ModelInfo] = {}

    def all_infos() -> list[dict[str, Any]]:
        for name, served in models.items():
            if name not in infos:
                infos[name] = model_info(served)
        return [infos[name].model_dump() for name in models]

    def maps_of(request: AttentionRequest) -> Response:
        new = min(ANSWER, config.max_tokens) if request.max_tokens is None else request.max_tokens
        longest = config.max_attention_tokens
        found = look(models[request.model].bundle, request.text, request.target, longest=longest, new_tokens=new)
        return as_answer({"model": request.model, **as_json(found)})

    @routes.get("/api/models", responses={200: {"model": list[ModelInfo]}, **described(401, 429, 500, 503)})
    async def list_models() -> Response:
        """Every model, with what it is made of."""
        return as_answer(await room.work(all_infos))

    @routes.post(
        "/attention",
        responses={200: {"model": AttentionAnswer}, **described(400, 401, 404, 408, 413, 429, 500, 503)},
    )
    async def attention(request: AttentionRequest) -> Response:
        """Who read whom: the maps of every layer and head for a text and its answer."""
        if request.model not in models:
            raise Refusal(404, f"model: {unknown_name(request.model[:100], models)}", param="model")
        return await room.work(maps_of, request)

    return routes


def page_router() -> APIRouter:
    """The page itself. It holds no secrets, so it needs no key; what it asks for does."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    async def page() -> Response:
        return _file("index.html")

    @routes.get("/page/{file}")
    async def page_file(file: str) -> Response:
        if file not in FILES:
            raise Refusal(404, "there is no such file")
        return _file(file)

    return routes


def _file(name: str) -> Response:
    path = PAGE / name
    return FileResponse(path, media_type=TYPES[path.suffix], headers={"Cache-Control": "no-cache"})


FILES = frozenset(path.name for path in PAGE.glob("*.*") if path.suffix in TYPES)  # nothing else is ever opened


# --- what a model is -------------------------------------------------------------------------------------------------


def model_info(served: Served) -> ModelInfo:
    """What the page says of a model. Its path is measured, its example is from its own held-out data."""
    model = served.bundle.model
    layers = model.config.source_mixers()
    text = example(served.bundle)
    path, steps = _measured_path(layers) if layers else (None, None)
    names = list(dict.fromkeys(layer.type for layer in layers)) or [model.config.type]
    return ModelInfo(
        name=served.name,
        kind=model.kind,
        about=served.about,
        architecture=model.config.describe(),
        parameters=model.parameter_count(),
        mixers=names,
        path=path,
        steps=steps,
        maps=_has_maps(served.bundle, text),
        source=served.takes_source,
        target=served.says_text,
        languages=None if served.languages is None else list(served.languages),
        example=text,
    )


def _measured_path(layers: list[MixerConfig]) -> tuple[int | None, int | None]:
    """Layers until the first token can change the last, and steps one after another within them."""
    width = max(WIDTH, max(layer.position_heads for layer in layers) * 2)
    width += -width % layers[0].position_heads
    try:
        path = path_length(lambda number: layers[number % len(layers)], LENGTH, width, draws=2)
        if path is None:
            return None, None
        costs = [layers[number % len(layers)].cost(LENGTH, width) for number in range(path)]
    except UserError:  # a mechanism that this width does not fit
        return None, None
    return path, sum(max(1, cost.sequential) for cost in costs)


def example(bundle: Bundle) -> str:
    """A text of the task's held-out data; empty if they are not here."""
    with tempfile.TemporaryDirectory(prefix="allyouneed-") as temporary:
        try:
            return _held_out_text(bundle, Path(temporary))
        except (UserError, OSError, StopIteration):
            return ""


def _has_maps(bundle: Bundle, text: str) -> bool:
    """Whether its layers weigh tokens; if not, influence is shown."""
    try:
        return not look(bundle, text or "a", new_tokens=1).note
    except UserError:
        return False


def _held_out_text(bundle: Bundle, temporary: Path) -> str:
    data = own_data(bundle, temporary)
    pairs = data.examples("valid")
    if pairs:
        return pairs[0][0]
    batch = next(iter(data.held_out("valid")))
    if batch.output_BT is None or bundle.codec.target is None:
        return ""
    return bundle.codec.decode_target(batch.output_BT[0].tolist())[:EXAMPLE].strip()
