"""`allyouneed serve`: serve models over HTTP, together with the web page."""

from typing import Annotated, Any

import typer

from allyouneed.cli.model_options import Device, Engine, Int8, Listed, check_engine
from allyouneed.errors import ConfigError, unknown_name

NEEDED = {
    "fastapi": "",
    "uvicorn": "",
    "httptools": "",
    "python_multipart": "python-multipart",
    "prometheus_client": "",
}


def command(
    models: Annotated[list[str], typer.Argument(help="Model folders or run folders; NAME=FOLDER sets a name.")],
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 chooses a free one.", show_default="8000")] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Name by which clients may address the server; * allows any. May be repeated."),
    ] = None,
    languages: Annotated[
        list[str] | None, typer.Option(help="Languages of a model: en:de, or NAME=en:de. May be repeated.")
    ] = None,
    keys: Annotated[str | None, typer.Option(help="File of API keys, one per line; requests must send one.")] = None,
    cors: Annotated[
        list[str] | None, typer.Option(help="Origin whose pages may send requests. May be repeated.")
    ] = None,
    runs: Annotated[
        str | None, typer.Option(help="Folder of training runs to show on the page.", show_default="runs")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Rows decoded in parallel.", show_default="64")] = None,
    queue: Annotated[int | None, typer.Option(help="Rows that may wait in the queue.", show_default="512")] = None,
    deadline: Annotated[float | None, typer.Option(help="Timeout of a request in seconds.", show_default="60")] = None,
    access_log: Annotated[
        str | None, typer.Option(help="Log requests on stderr: text, json or none.", show_default="text")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="Log other events from: debug, info, warning, error.", show_default="info")
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option(help="Set another limit: max_characters=5000. May be repeated.")
    ] = None,
    engine: Engine = "torch",
    int8: Int8 = False,
    shortlist: Listed = False,
    device: Device = "cpu",
) -> None:
    """Serve models over HTTP, with a web page.

    The API offers translation (LibreTranslate), completions (OpenAI), scores and attention weights.
    """
    require_packages()
    from allyouneed.config import override, parse
    from allyouneed.malloc import keep_freed_memory
    from allyouneed.serve.config import ServeConfig
    from allyouneed.serve.models import open_models
    from allyouneed.serve.server import serve

    given: dict[str, Any] = {"host": host, "port": port, "runs": runs, "batch": batch, "queue": queue}
    given |= {"hosts": allow_host, "deadline": deadline, "cors": cors, "access_log": access_log, "log_level": log_level}
    given |= {"keys": None if keys is None else read_keys(keys)}
    check_limits(limit or [])
    tree = override({name: value for name, value in given.items() if value is not None}, limit or [])
    config = parse(ServeConfig, tree)
    check_engine(engine, device, shortlist)
    keep_freed_memory()
    pairs = read_languages(languages or [], models)
    options = {"int8": int8, "ctranslate2": engine == "ctranslate2", "shortlist": shortlist}
    serve(config, open_models(models, pairs, device, **options))


def require_packages() -> None:
    """Raise ConfigError if a package of the extra `serve` is missing."""
    from importlib.util import find_spec

    missing = [package or name for name, package in NEEDED.items() if find_spec(name) is None]
    if missing:
        raise ConfigError(f"serve needs {', '.join(missing)}: pip install 'allyouneed[serve]'")


def check_limits(pairs: list[str]) -> None:
    """Raise ConfigError unless each pair is `name=value` with the name of a limit."""
    from allyouneed.serve.config import NOT_LIMITS, ServeConfig

    known = [name for name in ServeConfig.model_fields if name not in NOT_LIMITS]
    for pair in pairs:
        name, equals, _ = pair.partition("=")
        if not equals:
            raise ConfigError(f"--limit {pair}: should look like max_characters=5000")
        if name not in known:
            raise ConfigError(f"--limit {pair}: {unknown_name(name, known)}")


def read_keys(path: str) -> list[str]:
    """Return the keys in a file. A file keeps them off the command line, which other users of the machine can see."""
    try:
        with open(path, encoding="utf-8") as file:
            keys = [line.strip() for line in file if line.strip()]
    except OSError as error:
        raise ConfigError(f"--keys {path}: not readable: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--keys {path}: not readable: not UTF-8; write one key per line") from None
    if not keys:
        raise ConfigError(f"--keys {path}: contains no key; write one key per line")
    return keys


def read_languages(pairs: list[str], models: list[str]) -> dict[str, tuple[str, str]]:
    """Parse `name=en:de`, or `en:de` if there is only one model."""
    from allyouneed.serve.models import parse_model_argument
    from allyouneed.tasks.translation import LANGUAGE

    found = {}
    for pair in pairs:
        name, equals, both = pair.rpartition("=")
        source, colon, target = both.partition(":")
        if not colon or not LANGUAGE.fullmatch(source) or not LANGUAGE.fullmatch(target) or source == target:
            raise ConfigError(f"--languages {pair}: should look like en:de, or name=en:de")
        if not equals and len(models) > 1:
            raise ConfigError(f"--languages {pair}: which of the {len(models)} models? name={both}")
        found[name if equals else parse_model_argument(models[0])[0]] = source, target
    return found
