"""Everything that starts a server: its settings and its models, from options and from a TOML file.

    keys = "keys.txt"              # or a list of keys
    max_characters = 5000          # every setting and limit of `ServeConfig`

    [models]
    demo = "runs/demo"
    news = { folder = "runs/news", languages = "en:de" }

Paths in a file are relative to its folder. Options override the file. SIGHUP reads all of it again (`reload.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from allyouneed.adapter import adapter_config
from allyouneed.config import Config, override, parse, read_recipe
from allyouneed.errors import ConfigError, unknown_name
from allyouneed.folder import folder_recipe
from allyouneed.serve.config import NOT_LIMITS, ServeConfig
from allyouneed.serve.models import NAME, ModelOptions, Served, name_models, open_model
from allyouneed.tasks.translation import LANGUAGE


class ModelEntry(Config):
    """A model folder, an adapter that belongs to it, its glossary, and languages that its recipe does not name."""

    folder: str
    adapter: str | None = None  # of LoRA
    languages: str | None = None  # en:de
    glossary: str | None = None  # a file of terms that its translations use

    @field_validator("languages")
    @classmethod
    def _is_pair(cls, value: str | None) -> str | None:
        if value is not None and not _is_pair(value):
            raise ValueError("should look like en:de")
        return value

    @property
    def pair(self) -> tuple[str, str] | None:
        """The source and the target language."""
        if self.languages is None:
            return None
        source, _, target = self.languages.partition(":")
        return source, target


def _is_pair(text: str) -> bool:
    source, _, target = text.partition(":")
    return bool(LANGUAGE.fullmatch(source) and LANGUAGE.fullmatch(target)) and source != target


def _as_entry(value: Any) -> Any:
    return {"folder": value} if isinstance(value, str) else value


class Setup(ServeConfig):
    """The settings of a server, its models and how they are loaded."""

    models: dict[str, Annotated[ModelEntry, BeforeValidator(_as_entry)]]
    engine: Literal["torch", "ctranslate2"] = "torch"
    int8: bool = False
    shortlist: bool = False
    device: str = "cpu"
    workers: Annotated[int, Field(ge=1, le=256)] = 1  # processes that share the port

    @field_validator("models")
    @classmethod
    def _have_names(cls, value: dict[str, ModelEntry]) -> dict[str, ModelEntry]:
        for name in value:
            if not NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid model name; use letters, digits and . _ -")
        return value

    @model_validator(mode="after")
    def _has_models(self) -> "Setup":
        if not self.models:
            raise ValueError("no models; name model folders, or list them in [models] of the file of --config")
        return self

    def open(self, name: str) -> Served:
        """Load a model."""
        options = ModelOptions(self.device, self.int8, self.engine == "ctranslate2", self.shortlist)
        entry = self.models[name]
        return open_model(name, entry.folder, entry.pair, options, entry.adapter).with_terms(entry.glossary)


@dataclass(frozen=True)
class Source:
    """Where the setup comes from: a file, and options that override it. It can be read again."""

    file: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Sequence[str] = ()  # name=value
    models: Sequence[str] = ()  # folder, or name=folder; replace those of the file
    languages: Sequence[str] = ()  # en:de, or name=en:de
    glossaries: Sequence[str] = ()  # file, or name=file
    adapters: Sequence[str] = ()  # folder, or name=folder; of models above

    def read(self) -> Setup:
        """Return the setup, or raise ConfigError."""
        tree = {} if self.file is None else _read_file(Path(self.file))
        tree |= self.options
        if self.models:
            tree["models"] = {name: {"folder": folder} for name, folder in name_models(self.models).items()}
        _check_limits(self.limits)
        tree = override(tree, self.limits)
        if isinstance(tree.get("keys"), str):
            tree["keys"] = _read_keys(tree["keys"], "--keys" if "keys" in self.options else f"{self.file}: keys:")
        tree.setdefault("models", {})
        _set_languages(tree, self.languages)
        _add_adapters(tree["models"], self.adapters)
        _set_glossaries(tree, self.glossaries)
        return parse(Setup, tree, self.file or "")


def _read_file(path: Path) -> dict[str, Any]:
    """Return the values of a file, with paths relative to its folder."""
    if not path.exists():
        raise ConfigError(f"--config {path}: no such file")
    tree, base = read_recipe(path), path.parent
    for name in ("keys", "runs"):
        if isinstance(tree.get(name), str):
            tree[name] = str(base / tree[name])
    models = tree.get("models", {})
    if not isinstance(models, dict):
        raise ConfigError(f'{path}: models: should be a table, such as [models] with demo = "runs/demo"')
    entries = {name: _as_entry(entry) for name, entry in models.items()}
    for entry in entries.values():
        for key in ("folder", "adapter", "glossary"):
            if isinstance(entry, dict) and isinstance(entry.get(key), str):
                entry[key] = str(base / entry[key])
    return {**tree, "models": entries}


def _check_limits(pairs: Sequence[str]) -> None:
    """Raise ConfigError unless each pair is `name=value` with the name of a limit."""
    known = [name for name in ServeConfig.model_fields if name not in NOT_LIMITS]
    for pair in pairs:
        name, equals, _ = pair.partition("=")
        if not equals:
            raise ConfigError(f"--limit {pair}: should look like max_characters=5000")
        if name not in known:
            raise ConfigError(f"--limit {pair}: {unknown_name(name, known)}")


def _read_keys(path: str, where: str) -> list[str]:
    """Return the keys in a file. A file keeps them off the command line, which other users of the machine can see."""
    try:
        with open(path, encoding="utf-8") as file:
            keys = [line.strip() for line in file if line.strip()]
    except OSError as error:
        raise ConfigError(f"{where} {path}: not readable: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{where} {path}: not readable: not UTF-8; write one key per line") from None
    if not keys:
        raise ConfigError(f"{where} {path}: contains no key; write one key per line")
    return keys


def _add_adapters(models: dict[str, Any], adapters: Sequence[str]) -> None:
    """Add a model for each adapter `folder` or `name=folder`: the first of the models whose weights it belongs to."""
    bases = {name: entry for name, entry in models.items() if isinstance(entry, dict) and "folder" in entry}
    for name, folder in name_models(adapters).items():
        if name in models:
            raise ConfigError(
                f"--adapter {folder}: a model named {name!r} is already served; choose a name: other={folder}"
            )
        config = adapter_config(Path(folder))
        base = next((one for one in bases.values() if _sha256(one["folder"]) == config.base), None)
        if base is None:
            raise ConfigError(
                f"--adapter {folder}: belongs to the weights of {config.folder} (sha256 {config.base[:12]}), which is "
                "not among the models; serve that model, too"
            )
        models[name] = {**base, "adapter": folder}


def _sha256(folder: str) -> str:
    return folder_recipe(folder)[1]


def _set_languages(tree: dict[str, Any], pairs: Sequence[str]) -> None:
    """Set the languages of models: `name=en:de`, or `en:de` if there is only one model."""
    models = tree["models"]
    for pair in pairs:
        name, equals, both = pair.rpartition("=")
        if not _is_pair(both):
            raise ConfigError(f"--languages {pair}: should look like en:de, or name=en:de")
        if not equals and len(models) != 1:
            raise ConfigError(f"--languages {pair}: which of the {len(models)} models? name={both}")
        name = name if equals else next(iter(models))
        if name not in models:
            raise ConfigError(f"languages for {name}: no such model; the models are {', '.join(models)}")
        models[name] = {**models[name], "languages": both}


def _set_glossaries(tree: dict[str, Any], files: Sequence[str]) -> None:
    """Set the glossaries of models: `name=file`, or `file` if there is only one model."""
    models = tree["models"]
    for given in files:
        name, equals, file = given.partition("=")
        if not equals or name not in models:
            if equals and not Path(given).exists():  # the name of a file may have a `=`, too
                raise ConfigError(f"--glossary {given}: no model is named {name!r}; the models are {', '.join(models)}")
            if len(models) != 1:
                raise ConfigError(
                    f"--glossary {given}: which of the {len(models)} models? NAME={given}; they are {', '.join(models)}"
                )
            name, file = next(iter(models)), given
        models[name] = {**models[name], "glossary": file}
