"""The command line: one file for each command. A command parses its arguments, calls the library and prints.

Nothing here imports torch before a command runs, so `allyouneed --help` is fast.
"""

import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer

from allyouneed.cli import (
    claims,
    compare,
    cost,
    data,
    demo,
    distill,
    embed,
    evaluate,
    export,
    flow,
    generate,
    import_,
    inspect,
    listing,
    rasp,
    scaling,
    score,
    serve,
    shortlist,
    train,
    translate,
    verify,
)
from allyouneed.errors import UserError
from allyouneed.version import __version__
from allyouneed.words import printable

COMMANDS: dict[str, Callable[..., None]] = {
    "train": train.command,
    "evaluate": evaluate.command,
    "translate": translate.command,
    "generate": generate.command,
    "score": score.command,
    "embed": embed.command,
    "compare": compare.command,
    "claims": claims.command,
    "scaling": scaling.command,
    "verify": verify.command,
    "list": listing.command,
    "demo": demo.command,
    "distill": distill.command,
    "shortlist": shortlist.command,
    "cost": cost.command,
    "flow": flow.command,
    "inspect": inspect.command,
    "serve": serve.command,
    "import": import_.command,
    "export": export.command,
}
INTERRUPTED = 130  # exit status after SIGINT or SIGTERM
LONG_RUNS = ("train", "distill", "demo", "compare", "claims", "scaling", "cost", "flow", "serve")
# What typer raises for a wrong option. The name of the class moves between modules from version to version.
UsageError: Any = typer.BadParameter.__base__

# Plain help texts: coloured ones take more time than the rest of `--help`.
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(data.app, name="data")
app.add_typer(rasp.app, name="rasp")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"allyouneed {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Train, use and compare Transformers and their relatives on your own data."""


def main() -> None:
    """Run the program `allyouneed`."""
    faulthandler.enable()  # a crash in native code leaves a traceback
    arguments = sys.argv[1:]
    if arguments[:2] != ["data", "prepare"] and arguments[:1] not in [[name] for name in LONG_RUNS]:
        # `allyouneed translate ... | head` ends like any other filter; a training run outlives its reader. Not in
        # `run`: in a process that continues, writing to a closed connection would kill it without a message.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if arguments[:1] == ["serve"]:  # a reload before the server can handle it waits; it would end the process
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    status = run(arguments)
    if status == INTERRUPTED:  # torch's teardown takes seconds on a busy machine; everything is saved and closed
        _exit_at_once(status)
    sys.exit(status)


def _exit_at_once(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)


def run(arguments: list[str]) -> int:
    """Run one command; return its exit status. User errors print one line; bugs keep their traceback."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    try:
        status = app(arguments or ["--help"], prog_name="allyouneed", standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        return _print_error(str(error), error.status)
    except UsageError as error:
        message = error.format_message().replace("Value error, ", "")
        known = [name for name in arguments[:1] if name in COMMANDS or name in ("data", "rasp")]
        return _print_error(f"{message} ({' '.join(['allyouneed', *known, '--help'])})", 2)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except OSError as error:
        _discard_output()
        where = f"{error.filename}: " if error.filename is not None else "standard output: "
        return _print_error(f"{where}{error.strerror or error}", 1)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        return _print_error("not enough memory; make the model, the batches or the texts smaller", 1)
    return int(status or 0)  # typer returns a status for an interruption; commands return none


def _print_error(message: str, status: int) -> int:
    if message:  # otherwise another process of the run prints it
        print(f"error: {printable(message)}", file=sys.stderr)
    return status


def _discard_output() -> None:
    """Redirect standard output, so that the interpreter does not retry a failed write when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
