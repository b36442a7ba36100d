"""`allyouneed serve`: serve models over HTTP, together with the web page."""

from typing import Annotated, Any, Literal

import typer

from allyouneed.cli.model_options import Int8, Listed, check_engine
from allyouneed.errors import ConfigError

NEEDED = {
    "fastapi": "",
    "uvicorn": "",
    "httptools": "",
    "python_multipart": "python-multipart",
    "prometheus_client": "",
}


Models = Annotated[list[str] | None, typer.Argument(help="Model folders or run folders; NAME=FOLDER sets a name.")]
ConfigFile = Annotated[
    str | None, typer.Option(help="TOML file of models and settings. Options override it; SIGHUP reads it again.")
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(help="Name by which clients may address the server; * allows any. May be repeated."),
]
Languages = Annotated[
    list[str] | None, typer.Option(help="Languages of a model: en:de, or NAME=en:de. May be repeated.")
]
Glossaries = Annotated[
    list[str] | None,
    typer.Option("--glossary", help="TSV file of terms that a model must use: FILE, or NAME=FILE. May be repeated."),
]
Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        help="Adapter (LoRA) of one of the models, served beside it as another model. NAME=FOLDER sets a "
        "name. May be repeated.",
    ),
]
Cors = Annotated[list[str] | None, typer.Option(help="Origin whose pages may send requests. May be repeated.")]
Runs = Annotated[str | None, typer.Option(help="Folder of training runs to show on the page.", show_default="runs")]
AccessLog = Annotated[str | None, typer.Option(help="Log requests on stderr: text, json or none.", show_default="text")]
LogLevel = Annotated[
    str | None, typer.Option(help="Log other events from: debug, info, warning, error.", show_default="info")
]
Limits = Annotated[list[str] | None, typer.Option(help="Set another limit: max_characters=5000. May be repeated.")]
Workers = Annotated[int | None, typer.Option(help="Processes that share the port and the cores.", show_default="1")]
RootPath = Annotated[
    str | None, typer.Option(help="Path below which a proxy shows the server: /models.", show_default="")
]
TrustProxy = Annotated[
    list[str] | None,
    typer.Option(help="Address or network of a proxy whose X-Forwarded-* headers are used. May be repeated."),
]
ServeEngine = Annotated[
    Literal["torch", "ctranslate2"] | None,
    typer.Option(help="Inference engine. Both give the same outputs for a trained model.", show_default="torch"),
]


def command(
    models: Models = None,
    config: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 chooses a free one.", show_default="8000")] = None,
    allow_host: AllowHost = None,
    languages: Languages = None,
    glossary: Glossaries = None,
    adapter: Adapters = None,
    keys: Annotated[str | None, typer.Option(help="File of API keys, one per line; requests must send one.")] = None,
    cors: Cors = None,
    runs: Runs = None,
    batch: Annotated[int | None, typer.Option(help="Rows decoded in parallel.", show_default="64")] = None,
    queue: Annotated[int | None, typer.Option(help="Rows that may wait in the queue.", show_default="512")] = None,
    deadline: Annotated[float | None, typer.Option(help="Timeout of a request in seconds.", show_default="60")] = None,
    access_log: AccessLog = None,
    log_level: LogLevel = None,
    limit: Limits = None,
    workers: Workers = None,
    root_path: RootPath = None,
    trust_proxy: TrustProxy = None,
    engine: ServeEngine = None,
    int8: Int8 = False,
    shortlist: Listed = False,
    device: Annotated[str | None, typer.Option(help="Device: cpu, cuda, cuda:1.", show_default="cpu")] = None,
) -> None:
    """Serve models over HTTP, with a web page.

    The API offers translation (LibreTranslate), completions (OpenAI), scores and attention weights.
    """
    require_packages()
    from allyouneed.malloc import keep_freed_memory
    from allyouneed.serve.server import serve
    from allyouneed.serve.setup import Source

    given: dict[str, Any] = {"host": host, "port": port, "runs": runs, "batch": batch, "queue": queue}
    given |= {"hosts": allow_host, "deadline": deadline, "cors": cors, "access_log": access_log, "log_level": log_level}
    given |= {"keys": keys, "root_path": root_path, "trust_proxy": trust_proxy, "engine": engine, "device": device}
    given |= {"int8": int8 or None, "shortlist": shortlist or None, "workers": workers}
    options = {name: value for name, value in given.items() if value is not None}
    named = (languages or (), glossary or (), adapter or ())
    source = Source(config, options, limit or (), models or (), *named)
    setup = source.read()
    check_engine(setup.engine, setup.device, setup.shortlist)
    if setup.workers > 1:
        from allyouneed.serve.supervisor import supervise

        raise typer.Exit(supervise(setup, source))
    keep_freed_memory()
    serve(setup, source)


def require_packages() -> None:
    """Raise ConfigError if a package of the extra `serve` is missing."""
    from importlib.util import find_spec

    missing = [package or name for name, package in NEEDED.items() if find_spec(name) is None]
    if missing:
        raise ConfigError(f"serve needs {', '.join(missing)}: pip install 'allyouneed[serve]'")
