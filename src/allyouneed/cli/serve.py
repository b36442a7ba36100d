"""`allyouneed serve`: models behind an HTTP API, and the page that shows them."""

from typing import Annotated, Any

import typer

from allyouneed.cli.model_options import Device, Engine, Int8, Listed, check_device, check_engine
from allyouneed.errors import ConfigError, unknown_name

NEEDED = {
    "fastapi": "",
    "uvicorn": "",
    "httptools": "",
    "python_multipart": "python-multipart",
    "prometheus_client": "",
}


def command(
    models: Annotated[list[str], typer.Argument(help="Model folders, or run folders; NAME=FOLDER names one.")],
    host: Annotated[str | None, typer.Option(help="The address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="The port; 0: any that is free.", show_default="8000")] = None,
    languages: Annotated[
        list[str] | None, typer.Option(help="What a model translates: en:de, or NAME=en:de; may be repeated.")
    ] = None,
    keys: Annotated[str | None, typer.Option(help="A file with a key on each line; requests must carry one.")] = None,
    cors: Annotated[list[str] | None, typer.Option(help="An origin whose pages may ask; may be repeated.")] = None,
    runs: Annotated[str | None, typer.Option(help="The folder whose runs are shown.", show_default="runs")] = None,
    batch: Annotated[int | None, typer.Option(help="Rows decoded side by side.", show_default="64")] = None,
    queue: Annotated[int | None, typer.Option(help="Rows that may wait.", show_default="256")] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds for a request.", show_default="60")] = None,
    limit: Annotated[list[str] | None, typer.Option(help="Any other limit: max_characters=5000; may repeat.")] = None,
    engine: Engine = "torch",
    int8: Int8 = False,
    shortlist: Listed = False,
    device: Device = "cpu",
) -> None:
    """Serve models over HTTP: translation (LibreTranslate), completions (OpenAI), scores, attention, and a page."""
    require_packages()
    from allyouneed.config import override, parse
    from allyouneed.malloc import keep_freed_memory
    from allyouneed.serve.config import ServeConfig
    from allyouneed.serve.models import open_models
    from allyouneed.serve.run import serve

    asked: dict[str, Any] = {"host": host, "port": port, "runs": runs, "batch": batch, "queue": queue}
    asked |= {"deadline": deadline, "cors": cors, "keys": None if keys is None else read_keys(keys)}
    check_limits(limit or [])
    tree = override({name: value for name, value in asked.items() if value is not None}, limit or [])
    config = parse(ServeConfig, tree)
    check_engine(engine, device, shortlist)
    check_device(device)
    keep_freed_memory()
    of_languages = read_languages(languages or [], models)
    how = {"int8": int8, "ctranslate2": engine == "ctranslate2", "shortlist": shortlist}
    serve(config, open_models(models, of_languages, device, **how))


def require_packages() -> None:
    """The packages of the server come with an extra."""
    from importlib.util import find_spec

    missing = [package or name for name, package in NEEDED.items() if find_spec(name) is None]
    if missing:
        raise ConfigError(f"serve needs {', '.join(missing)}: pip install 'allyouneed[serve]'")


def check_limits(pairs: list[str]) -> None:
    """`name=value`, and the name is one of a limit."""
    from allyouneed.serve.config import NO_LIMITS, ServeConfig

    known = [name for name in ServeConfig.model_fields if name not in NO_LIMITS]
    for pair in pairs:
        name, equals, _ = pair.partition("=")
        if not equals:
            raise ConfigError(f"--limit {pair}: should look like max_characters=5000")
        if name not in known:
            raise ConfigError(f"--limit {pair}: {unknown_name(name, known)}")


def read_keys(path: str) -> list[str]:
    """The keys in a file; they stay off the command line, which everybody on the machine can read."""
    try:
        with open(path, encoding="utf-8") as file:
            keys = [line.strip() for line in file if line.strip()]
    except OSError as error:
        raise ConfigError(f"--keys {path}: not readable: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--keys {path}: not readable: it is not UTF-8; it should have a key on each line") from None
    if not keys:
        raise ConfigError(f"--keys {path}: holds no key; it should have one on each line")
    return keys


def read_languages(pairs: list[str], models: list[str]) -> dict[str, tuple[str, str]]:
    """`name=en:de`, or `en:de` if there is only one model."""
    from allyouneed.serve.models import LANGUAGE, named

    found = {}
    for pair in pairs:
        name, equals, both = pair.rpartition("=")
        source, colon, target = both.partition(":")
        if not colon or not LANGUAGE.fullmatch(source) or not LANGUAGE.fullmatch(target) or source == target:
            raise ConfigError(f"--languages {pair}: should look like en:de, or name=en:de")
        if not equals and len(models) > 1:
            raise ConfigError(f"--languages {pair}: which of the {len(models)} models? name={both}")
        found[name if equals else named(models[0])[0]] = source, target
    return found
