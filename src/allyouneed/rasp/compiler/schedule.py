"""Assigns layers: the first layer after which any function of an s-op can be read.

    token, index, and functions of one of them   0: they are in the embedding
    aggregate, width                             1 + the maximum over its selector and its value
    function of several variables                the maximum over them, at least 1: the feed-forward after that
                                                 attention computes it, unless it is a sum and read as one

Depths are therefore RASP's own (Weiss et al. 2021), except for functions of several variables that float32 cannot
separate at once: those are *cut*, and their arguments are computed a layer earlier.
"""

from collections.abc import Sequence

import numpy as np

from allyouneed.rasp.atoms import Atom
from allyouneed.rasp.compiler.domains import GRID, Bounds, grid_size, tabulate, union
from allyouneed.rasp.compiler.elementwise import plan_map
from allyouneed.rasp.compiler.ir import NEVER, Floats, TabulatedSOp, variable
from allyouneed.rasp.compiler.refusal import Obstacle
from allyouneed.rasp.compiler.scores import Side


class ProgramIR:
    """A program as s-ops in topological order, and its outputs by name."""

    def __init__(self, vocabulary: Sequence[Atom], bounds: Bounds) -> None:
        self.bounds = bounds
        self.token = variable("token", "tokens", vocabulary)
        self.index = variable("index", "indices", range(bounds.length), permutes=True)
        self.sops: list[TabulatedSOp] = []
        self.outputs: dict[str, TabulatedSOp] = {}

    def add(self, sop: TabulatedSOp, order: float | None = None) -> TabulatedSOp:
        sop.order = len(self.sops) if order is None else order
        self.sops.append(sop)
        return sop


def cut_to_size(arguments: tuple[TabulatedSOp, ...], program: ProgramIR, most: int = GRID) -> tuple[TabulatedSOp, ...]:
    """Compute arguments a layer earlier until their combinations of values are few enough."""
    while grid_size(union(arguments)) > most:
        size = grid_size(union(arguments))
        widest = max(arguments, key=lambda argument: grid_size(argument.frontier) / len(argument.values))
        if len(widest.values) >= grid_size(widest.frontier):
            raise Obstacle(f"has {size:,} combinations of its variables' values; at most {most:,} are supported")
        arguments = tuple(cut(a, program) if a is widest else a for a in arguments)
    return arguments


def cut(sop: TabulatedSOp, program: ProgramIR) -> TabulatedSOp:
    """Return a function of variables as a new variable, which the next layer can read."""
    if sop.cut is None:
        layer = ready_layer(sop, program)
        made = variable("cut", sop.label, sop.values, arguments=(sop,), layer=layer, plan=sop.plan)
        sop.cut = program.add(made, sop.order + 0.5)
    return sop.cut


def ready_layer(sop: TabulatedSOp, program: ProgramIR) -> int:
    """Return the first layer after which any function of an s-op can be read."""
    if sop.owner is not sop:
        return 0 if sop.owner is None else sop.owner.layer
    if sop.kind != "map" or sop.plan is not None:
        return sop.layer
    try:
        sop.plan = plan_map(sop)
    except Obstacle:
        # Compute its arguments first: one layer more, but fewer combinations at once.
        arguments = tuple(cut(a, program) if a.kind == "map" and len(a.frontier) > 1 else a for a in sop.arguments)
        if arguments == sop.arguments:
            raise
        sop.frontier, table, values = tabulate(sop.call, arguments, program.bounds)
        place = {value: number for number, value in enumerate(sop.values)}  # no other values can occur
        sop.table = np.array([place.get(value, NEVER) for value in values] + [NEVER], dtype=np.int32)[table]
        sop.arguments, sop.additive = arguments, None
        return ready_layer(sop, program)
    sop.layer = sop.plan.layer
    return sop.layer


def side_layer(side: Side, program: ProgramIR) -> int:
    """Return the first layer after which some functions of an s-op can be read; a sum is ready with its parts."""
    sop, functions = side
    if is_sum(sop, functions):
        assert sop.additive is not None
        return max((v.layer for v in sop.additive), default=0)
    return ready_layer(sop, program)


def is_sum(sop: TabulatedSOp, functions: Floats) -> bool:
    """Return True if the functions of a sum of several variables are affine, so that it can be read as a sum."""
    if sop.owner is not sop or sop.kind != "map" or sop.additive is None:
        return False
    design = np.stack([np.ones(len(sop.values)), sop.numbers()], axis=1)
    fitted = design @ np.linalg.lstsq(design, functions, rcond=None)[0]
    return bool(np.allclose(fitted, functions, rtol=0, atol=1e-9 * max(1.0, float(np.abs(functions).max()))))
