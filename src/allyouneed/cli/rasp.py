"""`allyouneed rasp`: the RASP language. `repl` is interactive, `run` evaluates a file on an input, `draw` draws it,
`compile` turns it into a model folder."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from allyouneed.errors import ConfigError, FolderError

app = typer.Typer(rich_markup_mode=None)

Compat = Annotated[
    bool, typer.Option("--compat", help="Reproduce the quirks of the published REPL, which are fixed by default.")
]


@app.callback(invoke_without_command=True)
def _rasp(context: typer.Context) -> None:
    """Run, draw and compile programs in RASP.

    RASP is a language whose operations are those of a Transformer.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("repl")
def repl(compat: Compat = False) -> None:
    """Start an interactive session. Statements end with ;. Type exit to leave."""
    from allyouneed.cli.terminal import shown
    from allyouneed.rasp.drawing.files import write_drawings
    from allyouneed.rasp.repl import Session, read_line
    from allyouneed.rasp.repl import run as talk

    session = Session(lambda text: print(shown(text)), compat)
    # The published REPL does not print the path of a drawing.
    report = (lambda path: None) if compat else (lambda path: session.write(f"\t picture: {path}"))
    session.interpreter.on_draw = write_drawings(report)
    talk(session, read_line)


@app.command("run")
def run(
    file: Annotated[str, typer.Argument(help="A .rasp file.")],
    text: Annotated[str | None, typer.Option("--input", help='The input, character by character: "hello".')] = None,
    values: Annotated[str | None, typer.Option(help="The input as a JSON list: '[1, 2, 3]'.")] = None,
    name: Annotated[
        list[str] | None, typer.Option(help="The s-op or selector to evaluate. May be repeated.", show_default="all")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object (null for NaN and infinity).")] = False,
    compat: Compat = False,
) -> None:
    """Evaluate the s-ops and selectors of a file on an input. Names that start with _ are private."""
    from allyouneed.cli.terminal import note, shown
    from allyouneed.rasp import formatting
    from allyouneed.rasp.drawing.files import write_drawings
    from allyouneed.rasp.evaluate import Evaluation
    from allyouneed.rasp.loading import read_program

    given = _given(text, values)
    program = read_program(file, compat, on_draw=write_drawings(lambda path: note(f"picture: {path}")))
    computed = Evaluation(given)
    results: dict[str, Any] = {}
    for one in name or [*program.sops, *program.selectors]:
        selector = program.selectors.get(one)
        sequence = None if selector is not None else computed.sequence(program.sop(one))
        rows = None if selector is None else computed.rows(selector)
        results[one] = rows if sequence is None else sequence
        if not as_json:
            lines = [f"{one} = {formatting.sequence(sequence, compat)}"] if sequence is not None else [f"{one} ="]
            lines += formatting.grid(given, rows) if rows is not None else []
            print(shown("\n".join(lines)))
    if as_json:
        print(json.dumps(_finite(results), ensure_ascii=False, allow_nan=False))


@app.command("compile")
def compile_(
    file: Annotated[str, typer.Argument(help="A .rasp file.")],
    out: Annotated[str, typer.Option(help="The model folder to write.")],
    vocabulary: Annotated[
        str, typer.Option(help="The allowed input tokens: characters, or words separated by spaces.")
    ],
    length: Annotated[int, typer.Option(help="The maximum input length in tokens.")],
    result: Annotated[str | None, typer.Option(help="The s-op to compile.", show_default="the file's last one")] = None,
    causal: Annotated[
        bool,
        typer.Option("--causal", help="Compile into a decoder; a position then selects only itself and earlier ones."),
    ] = False,
    verify: Annotated[bool, typer.Option(help="Compare the model with the interpreter.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Replace a trained model.")] = False,
    compat: Compat = False,
) -> None:
    """Compile an s-op into the weights of a Transformer.

    The model, an encoder (or decoder, with --causal), is exact for every input of up to --length tokens.
    """
    from allyouneed.cli.terminal import shown
    from allyouneed.rasp.compiler import compile_file

    if not force:
        _require_replaceable(out)
    compiled, folder = compile_file(
        file, out, vocabulary, length, result=result, causal=causal, verified=verify, compat=compat
    )
    print(shown(str(compiled.report)))
    print(shown(str(compiled.verified)) if compiled.verified else "not compared with the interpreter")
    print(f"model: {folder}")


@app.command("draw")
def draw(
    file: Annotated[str, typer.Argument(help="A .rasp file.")],
    out: Annotated[str, typer.Option(help="The drawing to write: .svg or .png.")],
    text: Annotated[str | None, typer.Option("--input", help='The input, character by character: "hello".')] = None,
    values: Annotated[str | None, typer.Option(help="The input as a JSON list: '[1, 2, 3]'.")] = None,
    result: Annotated[
        str | None, typer.Option(help="The s-op or selector to draw.", show_default="the file's last s-op")
    ] = None,
    compiled: Annotated[
        bool,
        typer.Option("--compiled", help="Compile the s-op, and draw each selector beside the attention weights."),
    ] = False,
    causal: Annotated[bool, typer.Option("--causal", help="With --compiled: compile into a decoder.")] = False,
    compat: Compat = False,
) -> None:
    """Draw how an s-op is computed on an input.

    The drawing shows layers, heads, selectors and values.
    """
    from allyouneed.rasp.drawing.files import save_drawing
    from allyouneed.rasp.drawing.program import draw as draw_program
    from allyouneed.rasp.loading import read_program

    given = _given(text, values)
    program = read_program(file, compat)
    if compiled:
        from allyouneed.rasp.compiler.attention import trace_attention
        from allyouneed.rasp.compiler.drawing import draw_compiled

        sop = program.sop(result)
        trace = trace_attention(
            sop, given, name=result or program.names.get(sop, "out"), causal=causal, names=program.names
        )
        drawn = draw_compiled(trace)
    elif causal:
        raise typer.BadParameter("--causal: applies to compiled programs only; add --compiled")
    else:
        selectors = program.selectors
        drawn = draw_program(selectors[result] if result in selectors else program.sop(result), given, program.names)
    print(save_drawing(drawn, out))


def _given(text: str | None, values: str | None) -> Any:
    """Return the input from --input or --values."""
    if (text is None) == (values is None):
        raise typer.BadParameter("use either --input TEXT or --values LIST")
    if text is not None:
        return text
    try:
        given = json.loads(values or "", parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"--values: not JSON: {error}") from error
    if not isinstance(given, list):
        raise typer.BadParameter("--values: not a JSON list; should be one such as '[1, 2, 3]'")
    for place, value in enumerate(given):
        if not isinstance(value, str | int | float):
            kind = "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else "null"
            raise typer.BadParameter(
                f"--values: element {place} is {kind}; should be a number, a string, true or false"
            )
    return given


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON cannot represent, by null."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _require_replaceable(folder: str) -> None:
    """Raise ConfigError if the folder holds anything other than a compiled program, which is quick to rebuild."""
    from allyouneed.folder import folder_recipe
    from allyouneed.rasp.compiler import ABOUT

    path = Path(folder)
    if not path.is_dir() or not any(path.iterdir()):
        return
    try:
        recipe, _ = folder_recipe(path)
    except FolderError:
        raise ConfigError(f"{folder}: is not empty and not a model folder; choose another --out") from None
    if recipe.get("start") is not None or not str(recipe.get("about")).endswith(ABOUT):
        raise ConfigError(f"{folder}: holds a trained model, not a compiled one; choose another --out, or add --force")
