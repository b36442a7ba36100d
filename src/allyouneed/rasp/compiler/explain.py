"""Explains a program on one input as plain values: every s-op and selector, and the compiled model's attention.

    explain("flip = select(indices, length - indices - 1, ==); reverse = aggregate(flip, tokens);", "hello")

For programs that are being typed: everything before a mistake is still evaluated. `main` serves requests line by line
in a separate process, because a server can end a process that takes too long, but not a thread.
"""

import json
import math
import resource
import sys
from collections.abc import Mapping
from typing import Any

from allyouneed.errors import UserError
from allyouneed.rasp.atoms import Atom
from allyouneed.rasp.compiler.attention import AttentionTrace, trace_attention
from allyouneed.rasp.compiler.refusal import CannotCompile
from allyouneed.rasp.compiler.verify import equal
from allyouneed.rasp.errors import RaspError
from allyouneed.rasp.evaluate import Evaluation
from allyouneed.rasp.graph import Input, Node, Select, Selector, SOp, in_order
from allyouneed.rasp.interpreter import Interpreter, refuse_load
from allyouneed.rasp.labels import title
from allyouneed.rasp.loading import Loader
from allyouneed.rasp.values import Environment, NamedNode, describe

LONGEST = 64  # tokens: selectors and heads are n x n
NAMES = 60  # maximum names shown
MEMORY = 6 << 30  # bytes of address space; torch alone maps more than 1 GiB
CUT = 40  # characters of a value


class _ProgramError(Exception):
    """An error in a program, and the line in which its sentence starts."""

    def __init__(self, error: RaspError, line: int) -> None:
        super().__init__(str(error))
        self.line = line


def explain(text: str, given: Input, compiled: bool = True, length: int | None = None) -> dict[str, Any]:
    """Return everything a program computes on an input. `compiled`: compile it too, for inputs up to `length`."""
    if not 1 <= len(given) <= LONGEST:
        raise RaspError(f"input: {len(given)} tokens; should be 1 to {LONGEST}")
    interpreter = Interpreter()
    where = interpreter.new_file("program")
    error = _run(interpreter, text, where)
    run, values = Evaluation(given), []
    flows = {name: value for name, value in where.names.items() if isinstance(value, NamedNode)}
    for name, value in list(where.names.items())[-NAMES:]:
        try:
            values.append(_value(name, value, run))
        except RaspError as wrong:
            error = error or {"message": f"{name}: {wrong}", "line": None, "column": None}
    values += _inside(flows, interpreter.names, run)
    sops = {name: flow.node for name, flow in flows.items() if isinstance(flow.node, SOp)}
    shown = {one["name"] for one in values}
    result = next((name for name in reversed(sops) if name in shown and not name.startswith("_")), None)
    result = result or next((name for name in reversed(sops) if name in shown), None)
    return {
        "tokens": [_shown(atom) for atom in given],
        "values": values,
        "result": result,
        "output": None if result is None else [_shown(atom) for atom in run.sequence(sops[result])],
        "error": error,
        "compiled": None
        if result is None or not compiled or error
        else _compiled(sops[result], given, result, length, interpreter.names),
    }


def _run(interpreter: Interpreter, text: str, where: Environment) -> dict[str, Any] | None:
    loader = Loader(interpreter)
    interpreter.on_load = refuse_load

    def stop(error: RaspError, place: str) -> None:
        raise _ProgramError(error, int(place.rpartition(":")[2]))

    loader.on_error = stop
    try:
        with interpreter.budget():
            loader.run(text, where)
    except _ProgramError as wrong:
        return {"message": str(wrong), "line": wrong.line, "column": None}
    return None


def _inside(flows: Mapping[str, NamedNode], names: Mapping[Node, str], run: Evaluation) -> list[dict[str, Any]]:
    """Return the values behind the named ones: unnamed comparisons, and names inside functions."""
    known = {id(flow.node) for flow in flows.values()}
    found: list[dict[str, Any]] = []
    for node in in_order([flow.node for flow in flows.values()]):
        if not isinstance(node, SOp | Selector) or not (node in names or isinstance(node, Select)):
            continue
        if id(node) not in known and len(found) < NAMES:
            try:
                one = _value(_cut(names.get(node) or title(node, names)), NamedNode(node), run) | {"inside": True}
                if one not in found:
                    found.append(one)
            except RaspError:
                continue
    return found


def _value(name: str, value: Any, run: Evaluation) -> dict[str, Any]:
    if not isinstance(value, NamedNode):
        return {"name": name, "kind": "other", "values": [_cut(describe(value))]}
    if isinstance(value.node, SOp):
        return {"name": name, "kind": "s-op", "values": [_shown(atom) for atom in run.sequence(value.node)]}
    return {"name": name, "kind": "selector", "matrix": run.rows(value.node)}


def _compiled(sop: SOp, given: Input, name: str, length: int | None, names: Mapping[Node, str]) -> dict[str, Any]:
    try:
        view = trace_attention(sop, given, length=max(length or 0, len(given)), name=name, names=names)
    except (CannotCompile, UserError) as refusal:
        return {"refused": str(refusal), "maps": []}
    report = view.compiled.report
    return {
        "refused": None,
        "layers": len(report.layers),
        "heads": sum(report.heads),
        "width": report.width,
        "parameters": report.parameters,
        "tokens": ["start", *(_shown(atom) for atom in given)],
        "maps": _maps(view),
        "output": [_shown(atom) for atom in view.found],
        "equal": equal(view.found, view.right),
    }


def _maps(view: AttentionTrace) -> list[dict[str, Any]]:
    maps = []
    for number, heads in enumerate(view.heads, start=1):
        if heads:
            titles = [" ".join(filter(None, (head.selector, head.part))) for head in heads]
            maps.append(
                {
                    "name": f"layer {number}",
                    "layer": number,
                    "part": "encoder",
                    "rows": "source",
                    "columns": "input",
                    "heads": [_cut(title) for title in titles],
                    "weights": [head.weights.round(4).tolist() for head in heads],
                }
            )
    return maps


def _shown(atom: Atom) -> Atom:
    """Return an atom that JSON can represent."""
    if isinstance(atom, float):
        return round(atom, 4) if math.isfinite(atom) else str(atom)
    if isinstance(atom, int) and not isinstance(atom, bool) and abs(atom) >= 1 << 53:
        return _cut(str(atom)) if abs(atom) < 10**300 else "a very large number"
    return _cut(atom) if isinstance(atom, str) else atom


def _cut(text: str) -> str:
    return text if len(text) <= CUT else f"{text[: CUT - 1]}…"


def main() -> None:
    """Serve requests from standard input, one JSON object a line, until it closes."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    print(flush=True)  # ready
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"answer": explain(**json.loads(line))}
        except UserError as error:
            answer = {"wrong": str(error)}
        except (MemoryError, RecursionError):
            answer = {"wrong": "program: needs more memory than allowed; make it or the input smaller"}
        print(json.dumps(answer, allow_nan=False), flush=True)
