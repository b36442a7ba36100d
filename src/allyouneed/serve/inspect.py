"""The endpoints of the page that concern models: `/api/models` lists them, `/attention` returns attention maps.

Maps and outputs come from `inspection/inspect.py`, which handles every architecture. Maps are large, so the thread that
computes them also serializes them; the framework does not process them again.
"""

import tempfile
from pathlib import Path
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field, StrictInt, StrictStr

from allyouneed.config import Config
from allyouneed.errors import UserError
from allyouneed.evaluation.measure import task_data
from allyouneed.evaluation.settings import recipe_of
from allyouneed.folder import Bundle
from allyouneed.inspection.inspect import inspect_text
from allyouneed.inspection.inspectors import MAX_ANSWER
from allyouneed.inspection.result import Axis, Part, as_json
from allyouneed.lab.cost.path_length import path_length
from allyouneed.mixers import MixerConfig
from allyouneed.serve.backend import Backend
from allyouneed.serve.errors import Refusal, error_responses
from allyouneed.serve.models import Served
from allyouneed.serve.thread_pool import json_response
from allyouneed.text.checks import unknown_words

PAGE = Path(__file__).parent / "page"
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
PATH_TOKENS = 32  # tokens between which a path is measured
PATH_WIDTH = 32  # minimum width of the measured layers; the path does not depend on it
EXAMPLE_LENGTH = 60  # characters of a language model's example
GREETING = "Hello, how are you?"  # the example of a model whose data are not here


class AttentionRequest(Config):
    """A text, and optionally the output to inspect."""

    model: StrictStr
    text: Annotated[StrictStr, Field(max_length=20_000)]
    target: Annotated[StrictStr, Field(max_length=20_000)] | None = None  # None: the greedy output
    max_tokens: Annotated[StrictInt, Field(ge=0, le=256)] | None = None  # to generate


class LayerMapsJSON(BaseModel):
    """The maps of one layer: for each head, a row for each position that reads and a column for each that is read."""

    name: str
    layer: int
    part: Part
    rows: Axis
    columns: Axis
    heads: list[str]
    weights: list[list[list[float]]]


class OutputTokenJSON(BaseModel):
    """A token of the output, and the most probable tokens in its place."""

    text: str
    logprob: float
    given: bool
    best: list[tuple[str, float]]


class AttentionResponse(BaseModel):
    """Attention maps. `source`, `target` and `input` are the labels of rows and columns."""

    model: str
    source: list[str] | None
    target: list[str] | None
    input: list[str] | None
    answer: str
    unknown: list[str]  # words of the text that the vocabulary cannot represent
    pieces: int  # in which other endpoints translate the text; the maps show it read as a whole
    said: list[OutputTokenJSON]
    maps: list[LayerMapsJSON]
    note: str


class ModelInfo(BaseModel):
    """What the page shows about a model."""

    name: str
    kind: str
    task: str | None  # the type of its recipe's task; null: it was not trained here
    about: str
    architecture: str
    parameters: int
    mixers: list[str]
    path: int | None  # layers until the first of 32 tokens can influence the last; null: never, or unknown
    steps: int | None  # sequential operations on that path
    maps: bool  # False: the model does not weigh tokens, and influence is shown
    source: bool
    target: bool
    languages: list[str] | None
    example: str


def router(backend: Backend) -> APIRouter:
    """Return the endpoints of models and maps."""
    routes = APIRouter(tags=["page"])
    config = backend.config
    pool = backend.add_pool()
    infos: WeakKeyDictionary[Served, ModelInfo] = WeakKeyDictionary()  # models may be replaced

    def all_infos() -> list[dict[str, Any]]:
        found = []
        for served in backend.models.values():
            if served not in infos:
                infos[served] = model_info(served)
            found.append(infos[served].model_dump())
        return found

    def maps_of(served: Served, request: AttentionRequest) -> Response:
        bundle, longest = served.bundle, config.max_attention_tokens
        new = min(MAX_ANSWER, config.max_tokens) if request.max_tokens is None else request.max_tokens
        found = inspect_text(bundle, request.text, request.target, longest=longest, new_tokens=new)
        unknown = [] if bundle.codec.source is None else unknown_words(bundle.codec.source, request.text)
        pieces = len(served.splitter.split_lines(request.text).pieces)
        return json_response({"model": request.model, "unknown": unknown, "pieces": pieces, **as_json(found)})

    @routes.get("/api/models", responses={200: {"model": list[ModelInfo]}, **error_responses(401, 429, 500, 503)})
    async def list_models() -> Response:
        """List all models with their architectures."""
        return json_response(await pool.run(all_infos))

    @routes.post(
        "/attention",
        responses={200: {"model": AttentionResponse}, **error_responses(400, 401, 404, 408, 413, 429, 500, 503)},
    )
    async def attention(request: AttentionRequest) -> Response:
        """Return the attention maps of every layer and head, for a text and its output."""
        return await pool.run(maps_of, backend.served(request.model), request)

    return routes


def page_router() -> APIRouter:
    """Return the endpoints of the page's files. They hold no secrets and need no key; the API that they call does."""
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


FILES = frozenset(path.name for path in PAGE.glob("*.*") if path.suffix in TYPES)  # the only files that are ever opened


# --- descriptions of models ------------------------------------------------------------------------------------------


def model_info(served: Served) -> ModelInfo:
    """Return what the page shows about a model. The path is measured; the example comes from its held-out data."""
    model = served.bundle.model
    layers = model.config.source_mixers()
    text = example(served.bundle) or (GREETING if served.generates_text else "")
    path, steps = _measured_path(layers) if layers else (None, None)
    names = list(dict.fromkeys(layer.type for layer in layers)) or [model.config.type]
    return ModelInfo(
        name=served.name,
        kind=model.kind,
        task=_task_name(served.bundle),
        about=served.about,
        architecture=model.config.describe(),
        parameters=model.parameter_count(),
        mixers=names,
        path=path,
        steps=steps,
        maps=_has_maps(served.bundle, text),
        source=served.takes_source,
        target=served.generates_text,
        languages=None if served.languages is None else list(served.languages),
        example=text,
    )


def _task_name(bundle: Bundle) -> str | None:
    try:
        return recipe_of(bundle).task.type
    except UserError:
        return None


def _measured_path(layers: list[MixerConfig]) -> tuple[int | None, int | None]:
    """Return the number of layers until the first token can influence the last, and their sequential operations."""
    width = max(PATH_WIDTH, max(layer.position_heads for layer in layers) * 2)
    width += -width % layers[0].position_heads
    try:
        path = path_length(lambda number: layers[number % len(layers)], PATH_TOKENS, width, draws=2)
        if path is None:
            return None, None
        costs = [layers[number % len(layers)].cost(PATH_TOKENS, width) for number in range(path)]
    except UserError:  # a mechanism that this width does not suit
        return None, None
    return path, sum(max(1, cost.sequential) for cost in costs)


def example(bundle: Bundle) -> str:
    """Return a text of the task's held-out data, or an empty text if the data are not available."""
    with tempfile.TemporaryDirectory(prefix="allyouneed-") as temporary:
        try:
            return _held_out_text(bundle, Path(temporary))
        except (UserError, OSError, StopIteration):
            return ""


def _has_maps(bundle: Bundle, text: str) -> bool:
    """Return True if some layer weighs tokens. If none does, influence is shown."""
    try:
        return not inspect_text(bundle, text or "a", new_tokens=1).note
    except UserError:
        return False


def _held_out_text(bundle: Bundle, temporary: Path) -> str:
    recipe = recipe_of(bundle)
    text = recipe.task.example(recipe.seed)  # preparing a large corpus would take minutes
    if text is not None:
        return text if bundle.codec.source is not None else text[:EXAMPLE_LENGTH].strip()
    data = task_data(bundle, temporary)
    pairs = data.examples("valid")
    if pairs:
        return pairs[0][0]
    batch = next(iter(data.held_out("valid")))
    if batch.output_BT is None or bundle.codec.target is None:
        return ""
    return bundle.codec.decode_target(batch.output_BT[0].tolist())[:EXAMPLE_LENGTH].strip()
