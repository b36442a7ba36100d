"""The settings of a finished model: the recipe and the search that its folder stores."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from allyouneed.config import parse
from allyouneed.decode import SearchConfig
from allyouneed.decode.rerank import Reverse
from allyouneed.errors import ConfigError, FolderError, UserError, unknown_name
from allyouneed.folder import Bundle
from allyouneed.text.codec import Codec
from allyouneed.text.sentences import Sentences, SentenceSplitter
from allyouneed.training import Recipe
from allyouneed.training.former import without_former_settings


def recipe_of(bundle: Bundle) -> Recipe:
    """Return the recipe that the model was trained with."""
    try:
        return parse(Recipe, without_former_settings(bundle.recipe))
    except UserError as error:
        raise FolderError(f"{bundle.path}: config.json: its recipe cannot be used: {error}") from None


def search_config(bundle: Bundle, changes: Mapping[str, Any]) -> SearchConfig:
    """Return the search settings of the model's recipe, overridden by the `changes` that are not None."""
    settings = recipe_of(bundle).decode.model_dump()
    given = {name: value for name, value in changes.items() if value is not None}
    _require_search(bundle, [name for name in given if name != "n_best"])  # a classifier ranks its classes
    if "n_best" in given and "beam" not in given:
        given["beam"] = max(settings["beam"], given["n_best"])
    return parse(SearchConfig, settings | given)


def _require_search(bundle: Bundle, names: Sequence[str]) -> None:
    """Raise ConfigError for search settings of a model whose output is not searched for."""
    if names and bundle.codec.target is None:
        raise ConfigError(f"{names[0]}: has no effect with a classifier, whose classes need no search; remove it")
    if names and bundle.codec.source is None:
        raise ConfigError(f"{names[0]}: has no effect with a language model, which is scored by its loss; remove it")


def in_languages(bundle: Bundle, source: str | None, target: str | None) -> Codec:
    """Return the codec of a multilingual model for two of its languages; None keeps its own."""
    try:
        return bundle.codec.in_languages(source, target)
    except ConfigError as error:
        raise ConfigError(f"{bundle.path}: {error}") from None


def reverse_of(bundle: Bundle, weight: float, source: str | None, target: str | None) -> Reverse:
    """Return a model as the reverse of one that translates from `source` to `target`, if it has language tags."""
    codec = in_languages(bundle, target, source) if bundle.codec.tags else bundle.codec
    try:
        return Reverse(bundle.model, codec, weight)
    except ConfigError as error:
        raise ConfigError(f"{bundle.path}: {error}") from None


def sentence_splitter(
    bundle: Bundle, how: Sentences = "auto", languages: tuple[str, str] | None = None
) -> SentenceSplitter:
    """Return how source texts are split before they are translated.

    `auto`: into pieces of as many sentences as a training line usually held, if the task has sentences at all.
    `languages`: instead of those that the recipe names.
    """
    if how not in get_args(Sentences):
        raise ConfigError(f"sentences: {unknown_name(str(how), get_args(Sentences))}")
    if how == "always" and (bundle.codec.classes is not None or bundle.codec.target is None):
        raise ConfigError("sentences: 'always' has no effect with a classifier, which reads each text as a whole")
    try:
        task = recipe_of(bundle).task
    except UserError:  # a folder without the recipe of a run is usable all the same
        return SentenceSplitter(1 if how == "always" else None, languages)
    most = 1 if how == "always" else (bundle.codec.sentences or 1) if how == "auto" and task.has_sentences else None
    return SentenceSplitter(most, languages or task.languages())


def between_languages(bundle: Bundle) -> bool:
    """Return whether the model translates between two different languages, so that a copy is not a translation."""
    try:
        languages = recipe_of(bundle).task.languages()
    except UserError:
        return False
    return languages is not None and languages[0] != languages[1]


def require_source(bundle: Bundle, what: str) -> None:
    """Raise ConfigError if the model does not read a source."""
    if bundle.codec.source is None:
        raise ConfigError(f"{bundle.path}: a language model has no source to {what}; try `generate`")


def require_generator(bundle: Bundle) -> None:
    """Raise ConfigError if the model does not generate text."""
    if bundle.codec.target is None:
        what = "a model that classifies each token" if bundle.codec.per_position else "a classifier"
        raise ConfigError(f"{bundle.path}: {what} does not generate text; try `translate`")
