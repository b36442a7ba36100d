"""The chat template of an imported model: a conversation as the ids that the model was trained on.

A template is a Jinja template as in transformers (`apply_chat_template`). It is untrusted: it runs in Jinja's sandbox,
where it sees nothing but the messages and the names of the special tokens, in a child process with limits on memory
and time (`template_process.py`).

The names of control tokens in the output of the template (`<|im_start|>`) become their ids. A message that contains
such a name stays text, as everywhere else: it cannot end its turn and start another one.
"""

import atexit
import json
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from allyouneed.errors import DataError, FolderError
from allyouneed.processes import BoundedProcesses
from allyouneed.text.template_process import SECONDS
from allyouneed.text.tokenizer import Tokenizer

FILE = "chat_template.json"
LARGEST_TEMPLATE = 1 << 20  # characters
PROCESSES = 2  # that render at the same time


@dataclass(frozen=True)
class ChatTemplate:
    """A template, the ids of the control tokens that it may write, and the names of special tokens that it may read."""

    template: str
    tokens: tuple[tuple[str, int], ...]
    names: tuple[tuple[str, str], ...]  # bos_token, eos_token, ...

    def encode(self, tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids of a conversation, up to the beginning of the next answer.

        Raise DataError if the template refuses the messages.
        """
        controls = dict(self.tokens)
        if not controls:
            return tokenizer.encode(self.render(messages))
        pattern = re.compile("|".join(map(re.escape, sorted(controls, key=len, reverse=True))))
        mark = (
            f"\ue000{secrets.randbelow(10**16)}\ue001"  # inside names of control tokens that are not to be recognised
        )
        marked = [
            {key: pattern.sub(lambda found: f"{found[0][:1]}{mark}{found[0][1:]}", text) for key, text in one.items()}
            for one in messages
        ]
        ids, place, text = list[int](), 0, self.render(marked)
        for found in pattern.finditer(text):
            ids += [*_encode(tokenizer, text[place : found.start()].replace(mark, ""), place), controls[found[0]]]
            place = found.end()
        return [*ids, *_encode(tokenizer, text[place:].replace(mark, ""), place)]

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the text of a conversation. Raise DataError if the template refuses the messages, or fails."""
        settings = {**dict(self.names), "add_generation_prompt": True, "tools": None, "documents": None}
        try:
            return _run(self.template, {"messages": messages, **settings})
        except DataError as error:
            raise DataError(f"the chat template of the model refuses these messages: {error}") from None

    def check(self) -> None:
        """Raise DataError if the template cannot be parsed."""
        if len(self.template) > LARGEST_TEMPLATE:
            raise DataError(f"a chat template of more than {LARGEST_TEMPLATE:,} characters")
        try:
            _run(self.template, None)
        except DataError as error:
            raise DataError(f"the chat template cannot be parsed: {error}") from None

    def save(self, folder: Path) -> None:
        """Write the file of this template."""
        tree = {"template": self.template, "tokens": dict(self.tokens), "names": dict(self.names)}
        (folder / FILE).write_text(json.dumps(tree, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(folder: Path, tokenizer: Tokenizer) -> "ChatTemplate | None":
        """Return the template of a folder, if it has one. Raise FolderError if the file is not what `save` writes."""
        path = folder / FILE
        if not path.exists():
            return None
        try:
            with path.open("rb") as file:
                tree = json.loads(file.read(4 * LARGEST_TEMPLATE).decode("utf-8"))
            template, tokens, names = tree["template"], tree["tokens"], tree["names"]
            texts = [template, *tokens, *names, *names.values()]
            if not all(isinstance(text, str) for text in texts) or not all(tokens):
                raise TypeError("the template and all names should be texts")
            if not all(type(number) is int and 0 <= number < tokenizer.size for number in tokens.values()):
                raise TypeError("tokens should be ids of the vocabulary")
            found = ChatTemplate(template, tuple(tokens.items()), tuple(names.items()))
            found.check()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, DataError) as error:
            raise FolderError(f"{path}: not readable: {error}") from None
        return found


def _encode(tokenizer: Tokenizer, text: str, place: int) -> list[int]:
    """Return the ids of a part of a text that starts at `place`."""
    return [] if not text else tokenizer.encode_rest(text) if place else tokenizer.encode(text)


def _run(template: str, values: Mapping[str, Any] | None) -> str:
    """Render a template, or only compile it if there are no values. Raise DataError if that fails."""
    text: str = _processes(os.getpid()).run({"template": template, "values": values})
    return text


@cache
def _processes(owner: int) -> BoundedProcesses:
    """Return the processes that render for this process; a fork of it must not share their pipes."""
    command = [sys.executable, "-m", "allyouneed.text.template_process"]
    found = BoundedProcesses(command, "template", PROCESSES, SECONDS)
    atexit.register(found.close)
    return found


def plain_turns(messages: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the lines of a conversation for a model without a template: `User: text`, and at the end `Assistant:`."""
    for message in messages:
        yield f"{message['role'].capitalize()}: {message['content']}\n"
    yield "Assistant:"
