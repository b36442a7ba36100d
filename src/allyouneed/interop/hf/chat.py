"""Imports the chat template of a Hugging Face folder, for a language model."""

from collections.abc import Mapping
from typing import Any

from allyouneed.errors import DataError, FolderError
from allyouneed.interop.hf.files import CHAT_TEMPLATE, LARGEST_CONFIG, TOKENIZER_CONFIG, ForeignFolder
from allyouneed.interop.hf.vocabulary import Foreign, Vocabulary
from allyouneed.text.chat_template import ChatTemplate

DEFAULT = "default"  # the template of several that a chat uses
PROBE = (
    {"role": "user", "content": "Hello, is it 3.14?"},
    {"role": "assistant", "content": " Yes.\n"},
    {"role": "user", "content": "Größe 🙂"},
)


def read_chat_template(
    foreign: ForeignFolder, settings: Mapping[str, Any], tokenizer: Foreign, vocabulary: Vocabulary
) -> tuple[ChatTemplate | None, list[str]]:
    """Return the template with the ids of its control tokens, and notes. `settings`: those of tokenizer_config.json.

    A template that cannot be used as in transformers is left out, and a note states why.
    """
    text = _template(foreign, settings)
    if text is None:
        return None, []
    controls = {name: vocabulary.ours[number] for number, (name, special) in tokenizer.added.items() if special}
    found = ChatTemplate(text, tuple(controls.items()), tuple(_names(settings).items()))
    try:
        found.check()
        theirs = tokenizer.encode(found.render(PROBE), controls=True)
        if found.encode(vocabulary.tokenizer, PROBE) != [vocabulary.ours[number] for number in theirs]:
            raise DataError("its text would get different tokens")
    except (DataError, KeyError) as error:
        return None, [f"the chat template is not imported: {error}"]
    return found, []


def _template(foreign: ForeignFolder, settings: Mapping[str, Any]) -> str | None:
    """Return the text of the template: a file, or a field of tokenizer_config.json."""
    if foreign.has(CHAT_TEMPLATE):
        try:
            return foreign.read(CHAT_TEMPLATE, LARGEST_CONFIG).decode("utf-8")
        except UnicodeDecodeError as error:
            raise FolderError(f"{foreign.path / CHAT_TEMPLATE}: not UTF-8: {error}") from None
    given = settings.get("chat_template")
    if isinstance(given, list):
        named = {one.get("name"): one.get("template") for one in given if isinstance(one, dict)}
        given = named.get(DEFAULT)
    if given is not None and not isinstance(given, str):
        raise FolderError(f"{foreign.path / TOKENIZER_CONFIG}: chat_template: should be a text")
    return given


def _names(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens by the names under which a template reads them."""
    found = {}
    for key, value in settings.items():
        name = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(name, str):
            found[key] = name
    return found
