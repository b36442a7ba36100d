"""The models of a server: model folders by name, optimized for inference."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from allyouneed.adapter import Adapter, read_adapter
from allyouneed.decode import SearchConfig
from allyouneed.decode.align import can_align
from allyouneed.errors import ConfigError, UserError
from allyouneed.evaluation.settings import in_languages, recipe_of, sentence_splitter
from allyouneed.folder import Bundle, load_folder
from allyouneed.interop.ctranslate2.engine import CTranslate2Engine
from allyouneed.interop.ctranslate2.vmap import refuse_shortlist
from allyouneed.pipeline import optimized
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.shared_weights import adapted, has_files, is_current, open_base, shares_weights
from allyouneed.serve.terms import ServedTerms, read_terms
from allyouneed.shortlist.build import require_shortlist, translates
from allyouneed.shortlist.table import Shortlist
from allyouneed.text.sentences import SentenceSplitter

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, eq=False)
class Served:
    """A model folder and the name under which it is served."""

    name: str
    bundle: Bundle
    languages: tuple[str, str] | None  # source and target; None: it does not translate
    search: SearchConfig  # the search settings of its recipe
    created: int  # when the folder was written, in seconds since 1970
    ctranslate2: CTranslate2Engine | None = None  # searches instead of torch
    shortlist: Shortlist | None = None  # restricts searches to likely words
    terms: ServedTerms | None = None  # a glossary for all requests
    adapter: Adapter | None = None  # of LoRA
    base: Bundle | None = None  # whose weights it shares

    @cached_property
    def splitter(self) -> SentenceSplitter:
        """How texts to translate are split into sentences."""
        return sentence_splitter(self.bundle, languages=self.languages)

    @cached_property
    def aligns(self) -> bool:
        """Whether translations can be aligned with their sources."""
        return can_align(self.bundle.model, self.bundle.codec)

    def with_terms(self, file: str | None) -> "Served":
        """Return the model with the glossary of a file."""
        terms = None if file is None else read_terms(file, self.bundle, self.ctranslate2 is not None)
        return replace(self, terms=terms)

    @property
    def is_current(self) -> bool:
        """Whether the files of the folder, and of the adapter, are still those that were loaded."""
        return is_current(self.bundle) and (self.adapter is None or has_files(self.adapter.path, self.adapter.files))

    @property
    def about(self) -> str:
        """The recipe's description."""
        return str(self.bundle.recipe.get("about", ""))

    @property
    def takes_source(self) -> bool:
        """True if the model reads a source; False if it continues a text."""
        return self.bundle.codec.source is not None

    @property
    def generates_text(self) -> bool:
        """True if the model generates tokens; False if it is a classifier."""
        return self.bundle.codec.target is not None and self.bundle.codec.classes is None


@dataclass(frozen=True)
class ModelOptions:
    """How models are loaded.

    With `ctranslate2`, that engine searches for translations. With `shortlist`, searches are restricted to the words
    of the folders' shortlists. Everything else runs in torch with the full vocabulary.
    """

    device: str = "cpu"
    int8: bool = False
    ctranslate2: bool = False
    shortlist: bool = False


def open_model(
    name: str, folder: str, languages: tuple[str, str] | None, options: ModelOptions, adapter: str | None = None
) -> Served:
    """Load a model, with an adapter if given.

    `languages` replace those of its recipe; of a multilingual model, they choose its tags.
    """
    if options.ctranslate2:
        return _open_ctranslate2(name, folder, languages, options, adapter)
    base = bundle = open_base(folder, options.device, options.int8)
    _refuse_pictures(bundle, folder)
    read, kept = None, True
    if adapter is not None:
        read = read_adapter(Path(adapter), base.model, base.sha256)
        bundle = adapted(base, read, options.device, options.int8)
        kept = shares_weights(base, read)  # a merged model needs no base
        read = replace(read, thin={})  # the model has its own
    if bundle.codec.tags and languages is not None:
        bundle = replace(bundle, codec=in_languages(bundle, *languages))
    needed = options.shortlist and (bundle.shortlist is not None or translates(bundle))
    listed = require_shortlist(bundle) if needed else None
    pair, search = languages or _languages(bundle), _search(bundle)
    return Served(name, bundle, pair, search, _created(bundle), None, listed, adapter=read, base=base if kept else None)


def _open_ctranslate2(
    name: str, folder: str, languages: tuple[str, str] | None, options: ModelOptions, adapter: str | None
) -> Served:
    """Load a translator whose searches run in CTranslate2."""
    bundle = load_folder(folder, options.device)
    _refuse_pictures(bundle, folder)
    if bundle.codec.tags and languages is not None:
        bundle = replace(bundle, codec=in_languages(bundle, *languages))
    refuse_shortlist(options.shortlist)
    if bundle.codec.source is None:
        raise ConfigError(
            f"{folder}: --engine ctranslate2 serves translators only, and this is a language model; use --engine torch"
        )
    read = None if adapter is None else read_adapter(Path(adapter), bundle.model, bundle.sha256)
    if read is not None:
        read.merge(bundle.model)
        bundle = replace(bundle, sha256=read.sha256)
    engine = CTranslate2Engine(bundle, options.int8)
    bundle = optimized(bundle, options.int8)
    pair, search = languages or _languages(bundle), _search(bundle)
    return Served(name, bundle, pair, search, _created(bundle), engine, adapter=read)


def _refuse_pictures(bundle: Bundle, folder: str) -> None:
    """Raise ConfigError for a model of images: the name of a file in a request would be opened on the server."""
    if bundle.codec.source is not None and bundle.codec.source.picture is not None:
        raise ConfigError(f"{folder}: reads images from files; only models of texts are served")


def open_models(
    folders: Sequence[str],
    languages: Mapping[str, tuple[str, str]] | None = None,
    device: str = "cpu",
    *,
    int8: bool = False,
    ctranslate2: bool = False,
    shortlist: bool = False,
) -> dict[str, Served]:
    """Load the models of `folder` or `name=folder`, in the given order. The default name is that of the folder."""
    options, pairs = ModelOptions(device, int8, ctranslate2, shortlist), languages or {}
    return {name: open_model(name, folder, pairs.get(name), options) for name, folder in name_models(folders).items()}


def name_models(folders: Sequence[str]) -> dict[str, str]:
    """Return the folders of `folder` or `name=folder` by name. Raise ConfigError if a name occurs twice."""
    found: dict[str, str] = {}
    for entry in folders:
        name, folder = parse_model_argument(entry)
        if name in found:
            raise ConfigError(f"{entry}: a model named {name!r} is already served; choose another name: other={folder}")
        found[name] = folder
    return found


def check_searches(models: Mapping[str, Served], config: ServeConfig) -> None:
    """Raise ConfigError if a model's recipe exceeds the limits. Model folders are not trusted to choose them."""
    for served in models.values():
        if served.languages is None:
            continue  # never searched
        for setting, limit in (("beam", "max_beam"), ("max_length", "max_tokens")):
            value, most = getattr(served.search, setting), getattr(config, limit)
            if value is not None and value > most:
                raise ConfigError(
                    f"{served.bundle.path}: its recipe sets decode.{setting} = {value}, and the server allows at most "
                    f"{most}; to allow it, start the server with --limit {limit}={value}"
                )


def parse_model_argument(entry: str) -> tuple[str, str]:
    """Return the name and the folder of `folder` or `name=folder`."""
    name, equals, folder = entry.partition("=")
    if not equals or Path(entry).is_dir():
        path = Path(entry).resolve()
        # runs/demo/model is the model of the run `demo`.
        name, folder = path.parent.name if path.name == "model" else path.name, entry
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{entry}: {name!r} is not a valid model name; use letters, digits and . _ - as in name=folder"
        )
    return name, folder


def _languages(bundle: Bundle) -> tuple[str, str] | None:
    """Return the source and the target language of a model, if its task names them."""
    try:
        return recipe_of(bundle).task.languages()
    except UserError:
        return None


def _created(bundle: Bundle) -> int:
    """Return when a folder was written. Requests cannot read it: the folder may have been moved meanwhile."""
    return int((bundle.path / "config.json").stat().st_mtime)


def _search(bundle: Bundle) -> SearchConfig:
    try:
        return recipe_of(bundle).decode
    except UserError:  # a folder without the recipe of a run is usable all the same
        return SearchConfig()
