"""In which layer an s-op is ready: the first after which any function of it can be read.

    token, index, and functions of one of them   0: they are in the embedding
    aggregate, width                             1 + the latest of what its selector and its values need
    function of several variables                that of the latest of them (1 at least): the feed-forward that follows
                                                 the attention computes it, unless it is a sum and read as such

So depths are RASP's own (Weiss et al. 2021), but for functions of several variables that float32 cannot tell apart at
once: those are *cut*, and what they are made of is computed a layer earlier.
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
    """What was built: s-ops in order, inputs first, and the outputs by name."""

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
    """Where a function has too many combinations, what it is made of is computed before it, a layer earlier."""
    while grid_size(union(arguments)) > most:
        size = grid_size(union(arguments))
        widest = max(arguments, key=lambda argument: grid_size(argument.frontier) / len(argument.values))
        if len(widest.values) >= grid_size(widest.frontier):
            raise Obstacle(
                f"has {size:,} combinations of values of what it depends on; at most {most:,} are told apart"
            )
        arguments = tuple(cut(a, program) if a is widest else a for a in arguments)
    return arguments


def cut(sop: TabulatedSOp, program: ProgramIR) -> TabulatedSOp:
    """A function of variables as a variable of its own, that whoever comes a layer later can read."""
    if sop.cut is None:
        layer = ready_layer(sop, program)
        made = variable("cut", sop.label, sop.values, arguments=(sop,), layer=layer, plan=sop.plan)
        sop.cut = program.add(made, sop.order + 0.5)
    return sop.cut


def ready_layer(sop: TabulatedSOp, program: ProgramIR) -> int:
    """The first layer after which any function of an s-op can be read."""
    if sop.owner is not sop:
        return 0 if sop.owner is None else sop.owner.layer
    if sop.kind != "map" or sop.plan is not None:
        return sop.layer
    try:
        sop.plan = plan_map(sop)
    except Obstacle:
        # Its arguments first, then itself: a layer more, but fewer combinations at a time.
        arguments = tuple(cut(a, program) if a.kind == "map" and len(a.frontier) > 1 else a for a in sop.arguments)
        if arguments == sop.arguments:
            raise
        sop.frontier, table, values = tabulate(sop.call, arguments, program.bounds)
        place = {value: number for number, value in enumerate(sop.values)}  # other values cannot be, as was seen before
        sop.table = np.array([place.get(value, NEVER) for value in values] + [NEVER], dtype=np.int32)[table]
        sop.arguments, sop.additive = arguments, None
        return ready_layer(sop, program)
    sop.layer = sop.plan.layer
    return sop.layer


def side_layer(side: Side, program: ProgramIR) -> int:
    """The first layer after which some functions of an s-op can be read: a sum is there when its parts are."""
    sop, functions = side
    if is_sum(sop, functions):
        assert sop.additive is not None
        return max((v.layer for v in sop.additive), default=0)
    return ready_layer(sop, program)


def is_sum(sop: TabulatedSOp, functions: Floats) -> bool:
    """Whether an s-op of several variables is read as the sum that it is."""
    if sop.owner is not sop or sop.kind != "map" or sop.additive is None:
        return False
    design = np.stack([np.ones(len(sop.values)), sop.numbers()], axis=1)
    fitted = design @ np.linalg.lstsq(design, functions, rcond=None)[0]
    return bool(np.allclose(fitted, functions, rtol=0, atol=1e-9 * max(1.0, float(np.abs(functions).max()))))
