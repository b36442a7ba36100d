"""The child process that renders chat templates: `python -m allyouneed.text.template_process`; see `processes.py`.

Templates are untrusted. Jinja's sandbox keeps them from all objects but the messages; the limits on memory and time
of this process bound what they can waste, at compilation (Jinja evaluates constants then) as well as in use.
"""

import json
import resource
import signal
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY = 512 << 20  # bytes of address space
SECONDS = 5  # for one conversation
MAX_OUTPUT = 1 << 20  # characters


class _Generation(Extension):
    """`{% generation %}`, which marks the answers of a conversation for training, and shows what is inside."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Called by Jinja."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    # The settings of transformers.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _to_json(value: Any, **settings: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **settings})


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _render(template: str, values: dict[str, Any] | None) -> str:
    """Return the text of a template, or nothing if there are no values: then it is only compiled."""
    compiled, parts, length = _compiled(template), [], 0
    if values is None:
        return ""
    for part in compiled.generate(**values):
        parts.append(part)
        length += len(part)
        if length > MAX_OUTPUT:
            raise ValueError(f"its output has more than {MAX_OUTPUT:,} characters")
    return "".join(parts)


def main() -> None:
    """Serve tasks until standard input closes."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    print(flush=True)
    for line in sys.stdin:
        signal.alarm(2 * SECONDS)  # ends this process if the parent is gone
        try:
            answer = {"answer": _render(**json.loads(line))}
        except MemoryError:
            answer = {"wrong": "it needs too much memory"}
        except Exception as error:  # a template can raise anything, and what it raises is about the messages
            answer = {"wrong": (str(error).splitlines() or [type(error).__name__])[0][:200]}
        print(json.dumps(answer), flush=True)
        signal.alarm(0)


if __name__ == "__main__":
    main()
