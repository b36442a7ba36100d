"""The chat template of an imported model: a conversation as the ids that the model was trained on.

A template is a Jinja template as in transformers (`apply_chat_template`). It is untrusted: it runs in Jinja's sandbox,
where it sees nothing but the messages and the names of the special tokens, and its loops and its output are bounded.

The names of control tokens in the output of the template (`<|im_start|>`) become their ids. A message that contains
such a name stays text, as everywhere else: it cannot end its turn and start another one.
"""

import json
import math
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from allyouneed.errors import DataError, FolderError
from allyouneed.text.tokenizer import Tokenizer

FILE = "chat_template.json"
LARGEST_TEMPLATE = 1 << 20  # characters
MAX_ITERATIONS = 100_000  # of all ranges of one rendering
MAX_OUTPUT = 1 << 20  # characters


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
            ids += [*_encode(tokenizer, text[place : found.start()].replace(mark, "")), controls[found[0]]]
            place = found.end()
        return [*ids, *_encode(tokenizer, text[place:].replace(mark, ""))]

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the text of a conversation. Raise DataError if the template refuses the messages, or fails."""
        settings = {**dict(self.names), "add_generation_prompt": True, "tools": None, "documents": None}
        parts, length = [], 0
        try:
            for part in _compiled(self.template).generate(messages=messages, range=_Ranges(), **settings):
                parts.append(part)
                length += len(part)
                if length > MAX_OUTPUT:
                    raise ValueError(f"its output has more than {MAX_OUTPUT:,} characters")
        except Exception as error:  # a template can raise anything, and what it raises is about the messages
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(f"the chat template of the model refuses these messages: {reason[:200]}") from None
        return "".join(parts)

    def check(self) -> None:
        """Raise DataError if the template cannot be parsed."""
        if len(self.template) > LARGEST_TEMPLATE:
            raise DataError(f"a chat template of more than {LARGEST_TEMPLATE:,} characters")
        try:
            _compiled(self.template)
        except (jinja2.TemplateError, RecursionError) as error:
            raise DataError(f"the chat template cannot be parsed: {str(error)[:200]}") from None

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


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text) if text else []


class _Ranges:
    """`range` with a bound on the total length of all its results."""

    def __init__(self) -> None:
        self._left = MAX_ITERATIONS

    def __call__(self, *bounds: int) -> range:
        found = range(*bounds)
        self._left -= len(found)
        if self._left < 0:
            raise OverflowError("its loops are too long")
        return found


class _Generation(Extension):
    """`{% generation %}`, which marks the answers of a conversation for training, and shows what is inside."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Called by Jinja."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with bounds on products: a text times a large number would fill the memory."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Called by Jinja."""
        size = math.prod(len(value) if hasattr(value, "__len__") else abs(value) for value in (left, right))
        if size > MAX_OUTPUT:
            raise OverflowError("its values are too large")
        return super().call_binop(context, operator, left, right)


@cache
def _compiled(template: str) -> jinja2.Template:
    # The settings of transformers.
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _to_json(value: Any, **settings: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **settings})


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def plain_turns(messages: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the lines of a conversation for a model without a template: `User: text`, and at the end `Assistant:`."""
    for message in messages:
        yield f"{message['role'].capitalize()}: {message['content']}\n"
    yield "Assistant:"
