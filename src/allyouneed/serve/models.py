"""The models of a server: folders by name, ready to predict, and what they say about themselves."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allyouneed.decode import SearchConfig
from allyouneed.errors import ConfigError, UserError
from allyouneed.evaluation.measure import recipe_of
from allyouneed.folder import Bundle, load_folder
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.interop.ctranslate2.engine import CTranslate2Engine
from allyouneed.interop.ctranslate2.vmap import refuse_shortlist
from allyouneed.serve.config import ServeConfig
from allyouneed.shortlist.build import require_shortlist, translates
from allyouneed.shortlist.table import Shortlist

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z0-9]{2,8})*")


@dataclass(frozen=True)
class Served:
    """One model folder under its name."""

    name: str
    bundle: Bundle
    languages: tuple[str, str] | None  # from, to; None: it does not translate between languages
    search: SearchConfig  # how its recipe decodes
    ctranslate2: CTranslate2Engine | None = None  # what searches instead of torch
    shortlist: Shortlist | None = None  # of the words that searches look at

    @property
    def about(self) -> str:
        """A sentence for people."""
        return str(self.bundle.recipe.get("about", ""))

    @property
    def takes_source(self) -> bool:
        """Whether it answers to a text; else it goes on from one."""
        return self.bundle.codec.source is not None

    @property
    def says_text(self) -> bool:
        """Whether it says tokens one after another; else it names classes."""
        return self.bundle.codec.target is not None and self.bundle.codec.classes is None


def open_models(
    folders: Sequence[str],
    languages: Mapping[str, tuple[str, str]] | None = None,
    device: str = "cpu",
    *,
    int8: bool = False,
    ctranslate2: bool = False,
    shortlist: bool = False,
) -> dict[str, Served]:
    """The models of `folder` or `name=folder`, in the given order; one without a name is called like its folder.

    With `ctranslate2` that engine searches for translations, with `shortlist` among the words of the folders'
    shortlists; all else is computed by torch, among all words, as ever.
    """
    given = dict(languages or {})
    models: dict[str, Served] = {}
    for entry in folders:
        name, folder = named(entry)
        if name in models:
            raise ConfigError(f"{entry}: there is already a model {name!r}; give it another name: other={folder}")
        bundle = load_folder(folder, device)
        if ctranslate2:
            refuse_shortlist(shortlist)
            if bundle.codec.source is None:
                raise ConfigError(
                    f"{folder}: --engine ctranslate2 searches for translations here; a language model has none, "
                    "--engine torch serves it"
                )
        engine = CTranslate2Engine(bundle, int8) if ctranslate2 else None
        optimize_for_inference(bundle.model, int8)
        pair = given.pop(name, None) or languages_of(bundle.recipe)
        needed = shortlist and (bundle.shortlist is not None or translates(bundle))
        listed = require_shortlist(bundle) if needed else None
        models[name] = Served(name, bundle, pair, _search(bundle), engine, listed)
    if given:
        raise ConfigError(f"languages for {', '.join(given)}: no such model; there are {', '.join(models)}")
    return models


def check_searches(models: Mapping[str, Served], config: ServeConfig) -> None:
    """Refuses models that search for more than a server gives: their folders say how, and those may be anybody's."""
    for served in models.values():
        if served.languages is None:
            continue  # nobody asks it for a search
        for setting, limit in (("beam", "max_beam"), ("max_length", "max_tokens")):
            value, most = getattr(served.search, setting), getattr(config, limit)
            if value is not None and value > most:
                raise ConfigError(
                    f"{served.bundle.path}: its recipe searches with decode.{setting} = {value}, and a server with at "
                    f"most {most}; if that is meant, start it with --limit {limit}={value}"
                )


def named(entry: str) -> tuple[str, str]:
    """The name and the folder of an argument."""
    name, equals, folder = entry.partition("=")
    if not equals or Path(entry).is_dir():
        path = Path(entry).resolve()
        # runs/demo/model is the model of the run `demo`.
        name, folder = path.parent.name if path.name == "model" else path.name, entry
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{entry}: {name!r} cannot be the name of a model; letters, digits and . _ - can: name=folder"
        )
    return name, folder


def languages_of(recipe: Mapping[str, Any]) -> tuple[str, str] | None:
    """From which language to which a recipe translates, if its task says so."""
    task = recipe.get("task")
    if not isinstance(task, Mapping):
        return None
    if task.get("type") in ("numbers", "dates"):
        return str(task.get("source", "en")), str(task.get("target", "de"))
    files = task.get("train")
    if task.get("type") == "translation" and isinstance(files, list | tuple) and len(files) == 2:
        # Parallel files are usually called after their languages: train.en, train.de.
        source, target = (Path(str(file)).suffix.removeprefix(".") for file in files)
        if source != target and LANGUAGE.fullmatch(source) and LANGUAGE.fullmatch(target):
            return source, target
    return None


def _search(bundle: Bundle) -> SearchConfig:
    try:
        return recipe_of(bundle).decode
    except UserError:  # a folder may come without the recipe of a run; its weights can be used all the same
        return SearchConfig()
