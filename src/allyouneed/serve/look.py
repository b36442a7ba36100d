"""What the page asks of models: which there are (`/api/models`), and who read whom (`/attention`).

The maps and the answer come from `lab/look.py`, which knows every architecture. Maps are large, so they are written as
JSON where they are made, in a thread, and not once more by the framework.
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from allyouneed.errors import ConfigError, UserError, unknown_name
from allyouneed.folder import Bundle
from allyouneed.lab.held_out import own_data
from allyouneed.lab.look import ANSWER, Heads, Look, look
from allyouneed.lab.path import path_length
from allyouneed.mixers import MIXERS, MixerConfig
from allyouneed.models.stack import StackConfig
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.models import Served

PAGE = Path(__file__).parent / "page"
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
LENGTH = 32  # tokens between which a path is measured
WIDTH = 32  # of the layers it is measured with, or a little more: the width decides nothing
EXAMPLE = 60  # characters of a language model's example


class AttentionRequest(BaseModel):
    """A text, and perhaps what should be said to it."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(max_length=100)]
    text: Annotated[str, Field(max_length=20_000)]
    target: Annotated[str, Field(max_length=20_000)] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=256)] | None = None


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
    maps: bool
    source: bool
    target: bool
    languages: list[str] | None
    example: str


def router(models: dict[str, Served], config: ServeConfig) -> APIRouter:
    """The page, the models and their maps."""
    routes = APIRouter(tags=["page"])
    room = asyncio.Semaphore(config.workers)
    infos: dict[str, ModelInfo] = {}

    def all_infos() -> list[ModelInfo]:
        for name, served in models.items():
            if name not in infos:
                infos[name] = model_info(served)
        return [infos[name] for name in models]

    @routes.get("/api/models")
    async def list_models() -> list[ModelInfo]:
        """Every model, with what it is made of."""
        async with room:
            return await run_in_threadpool(all_infos)

    @routes.post("/attention", response_class=Response)
    async def attention(request: AttentionRequest) -> Response:
        """Who read whom: the maps of every layer and head for a text and its answer."""
        if request.model not in models:
            raise ConfigError(f"model: {unknown_name(request.model, models)}")

        def answer() -> bytes:
            found = look(
                models[request.model].bundle,
                request.text,
                request.target,
                longest=config.max_attention_tokens,
                new_tokens=min(ANSWER, config.max_tokens) if request.max_tokens is None else request.max_tokens,
            )
            return json.dumps({"model": request.model, **as_json(found)}, allow_nan=False).encode()

        async with room:
            return Response(await run_in_threadpool(answer), media_type="application/json")

    @routes.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html", media_type="text/html", headers={"Cache-Control": "no-cache"})

    @routes.get("/page/{file}", include_in_schema=False)
    async def page_file(file: str) -> Response:
        if file not in FILES:
            return Response(status_code=404)
        path = PAGE / file
        return FileResponse(path, media_type=TYPES[path.suffix], headers={"Cache-Control": "no-cache"})

    return routes


FILES = frozenset(path.name for path in PAGE.glob("*.*") if path.suffix in TYPES)  # nothing else is ever opened


def as_json(found: Look) -> dict[str, Any]:
    """A look as plain values; weights to four digits."""
    return {
        "source": found.source,
        "target": found.target,
        "input": found.input,
        "answer": found.answer,
        "said": [
            {"text": one.text, "logprob": _finite(one.logprob), "given": one.given, "best": _choices(one.best)}
            for one in found.said
        ],
        "maps": [heads_as_json(one) for one in found.maps],
        "note": found.note,
    }


def heads_as_json(one: Heads) -> dict[str, Any]:
    """The maps of one layer as plain values."""
    weights = one.weights_HTS.double().nan_to_num().round(decimals=4).tolist()
    names = {"name": one.name, "layer": one.layer, "part": one.part, "rows": one.rows, "columns": one.columns}
    return {**names, "heads": one.heads, "weights": weights}


def _choices(best: list[tuple[str, float]]) -> list[list[Any]]:
    return [[text, _finite(logprob)] for text, logprob in best]


def _finite(number: float) -> float:
    return round(max(number, -1e4), 4) if number == number else -1e4


# --- what a model is -------------------------------------------------------------------------------------------------


def model_info(served: Served) -> ModelInfo:
    """What the page says of a model. Its path is measured, its example is from its own held-out data."""
    model = served.bundle.model
    config: Any = getattr(model, "config", None)
    layers = _layers(config)
    text = example(served.bundle)
    path, steps = _measured_path(layers) if layers else (None, None)
    names = list(dict.fromkeys(layer.type for layer in layers or ())) or [str(getattr(config, "type", model.kind))]
    return ModelInfo(
        name=served.name,
        kind=model.kind,
        about=served.about,
        architecture=architecture(config, model.kind, names),
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


def architecture(config: Any, kind: str, mixers: list[str]) -> str:
    """A few words: "encoder-decoder, softmax, 4+4 layers"."""
    words = [str(getattr(config, "type", kind))]
    words += [name for name in mixers if name != words[0]]
    attention = getattr(config, "attention", None)
    if isinstance(attention, str):
        words.append("no attention" if attention == "none" else f"{attention} attention")
    sizes = [getattr(config, name, None) for name in ("encoder_layers", "decoder_layers", "layers")]
    counts = [str(size) for size in sizes if isinstance(size, int)]
    if counts:
        words.append(f"{'+'.join(counts)} layer{'s' * (counts != ['1'])}")
    return ", ".join(words)


def _layers(config: Any) -> list[MixerConfig] | None:
    """The mixers through which a text (of an encoder-decoder, the source) is read, from the bottom up."""
    if isinstance(config, StackConfig):
        stack: Any = config.encoder_stack() if hasattr(config, "encoder_stack") else config
        count = getattr(config, "encoder_layers", None) or getattr(config, "layers", None) or 1
        return [stack.mixer_of(layer) for layer in range(count)]
    cell = getattr(config, "cell", None)
    return [MIXERS[cell]()] if cell in MIXERS else None  # type: ignore[call-arg]


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
