"""Elementwise functions as one feed-forward layer: every function is a step function along a line.

    z   = sum over variables of a position for each value        one number that separates all combinations
    y_i = base + sum over thresholds t of  D_t step(K_t (z_i - t)),    step(x) = ReLU(x + 1/2) - ReLU(x - 1/2)

Between two neighbours z < z' with different y there is one threshold, in the middle, with slope K = 2 / (z' - z). The
step is flat over the outer quarters of the gap, so an error in z of up to a quarter of the gap has no effect. Left of
its threshold a step is exactly 0. Steps are mirrored (counted from the right) if that keeps cancelling numbers small.

Positions form a mixed radix: the values of the first variable are adjacent, those of the next are further apart than
the whole line so far. A variable from an earlier layer (or copied by a head, or in the embedding) has integer
positions, one for each class of values that the function distinguishes. A variable that attention has just computed
keeps the position that attention gives it: a mean itself, 1/(c+1) for a count c. A function of a sum of functions of
one variable each (opens - closes == 0) needs no radix: the sum is the line.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from allyouneed.rasp.compiler.domains import spread
from allyouneed.rasp.compiler.ir import NEVER, Floats, Ints, TabulatedSOp
from allyouneed.rasp.compiler.refusal import Obstacle

SAME = 1e-9  # positions closer than this fraction of the line are one
ULP = 2.0**-24  # half a unit in the last place of float32
ATTENTION = 2.0**-21  # error of attention's output, relative to its range
SAFETY = 8.0  # minimum gap at a threshold, in errors of the line
BLUR = 0.03  # maximum error of a step's output, relative to its height


@dataclass(frozen=True, eq=False)
class LineTerm:
    """The term of one variable in the line."""

    variable: TabulatedSOp
    positions: Floats  # one for each value
    raw: bool  # read directly after attention has written it


@dataclass(frozen=True, eq=False)
class LinePlan:
    """A line on which the values of an s-op are separated."""

    layer: int
    places: tuple[LineTerm, ...]
    constant: float
    line: Floats  # ascending
    numbers: Ints  # index of the value at each point of the line
    margin: float  # smallest gap at a threshold, in units of the line's largest error


@dataclass(frozen=True, eq=False)
class ReluSteps:
    """Neurons ReLU(slope z + offset), and their output weights."""

    slopes_N: Floats
    offsets_N: Floats
    outputs_NR: Floats
    base_R: Floats


def raw_position(variable: TabulatedSOp) -> Floats:
    """Return the positions that attention gives to the values of a variable."""
    numbers = variable.numbers()
    return 1.0 / (numbers + 1.0) if variable.kind == "width" else numbers


def plan_of_variable(variable: TabulatedSOp, outputs_VR: Floats) -> LinePlan:
    """Return the line of a mean or width at attention's positions; only values with different outputs are separated."""
    place = LineTerm(variable, raw_position(variable), raw=True)
    numbers: dict[bytes, int] = {}
    same = [numbers.setdefault(row.tobytes(), number) for number, row in enumerate(np.ascontiguousarray(outputs_VR))]
    return _plan(variable.layer, (place,), np.array(same), place.positions)


def plan_map(sop: TabulatedSOp) -> LinePlan:
    """Return the line of a function of several variables, in the first layer that can separate all combinations."""
    first = max(1, *(v.layer + (v.kind == "cut") for v in sop.frontier))
    try:
        return _plan_at(sop, first)
    except Obstacle:
        if all(is_free(v, first) for v in sop.frontier):
            raise
    return _plan_at(sop, first + 1)


def is_free(variable: TabulatedSOp, layer: int) -> bool:
    """Return True if the feed-forward of a layer can read any function of the variable."""
    if variable.kind in ("token", "index"):
        return True
    return variable.layer < layer or (variable.kind == "aggregate" and variable.single and variable.layer == layer)


def _plan_at(sop: TabulatedSOp, layer: int) -> LinePlan:
    for candidate in _sums(sop):
        places = _sum_places(candidate, layer)
        if places is not None and _determines(candidate, sop):
            try:
                return _plan_of_table(sop, sop.table, layer, places)
            except Obstacle:
                continue  # a radix may leave larger gaps
    orders = _orders(sop, layer)
    classes = {v: _classes(sop, v) if is_free(v, layer) else None for v in sop.frontier}
    plans, reason = [], Obstacle("cannot be placed on a line")
    for order in orders:
        corners = [_corners(sop, v, classes[v], innermost=v is order[0]) for v in sop.frontier]
        try:
            plans.append(_plan_of_table(sop, sop.table[np.ix_(*corners)], layer, _radix(order, classes), corners))
        except Obstacle as unable:
            reason = unable
    if not plans:
        raise reason
    return min(plans, key=_changes)


def _corners(sop: TabulatedSOp, variable: TabulatedSOp, classes: Floats | None, innermost: bool) -> Ints:
    """Return the values of a variable that determine a radix's thresholds; between others the function is constant.

    One value for each position. Of a run of adjacent values that the function does not distinguish, both ends. For a
    variable that is not innermost, a run counts only if the function does not depend on the inner variables there.
    """
    if classes is not None:
        return np.unique(classes, return_index=True)[1]
    order = np.argsort(raw_position(variable), kind="stable")
    axis = sop.frontier.index(variable)
    rows = np.moveaxis(sop.table if (np.diff(order) == 1).all() else sop.table.take(order, axis), axis, 0)
    others = tuple(range(1, rows.ndim))
    kept = np.ones(len(order), dtype=np.bool_)
    changes = (rows[1:] != rows[:-1]).any(axis=others)
    kept[1:-1] = changes[1:] | changes[:-1]
    if not innermost:
        kept |= (rows != rows[(slice(None), *(slice(1) for _ in others))]).any(axis=others)
    return np.asarray(order[kept])


def _plan_of_table(
    sop: TabulatedSOp, table: Ints, layer: int, places: Sequence[LineTerm], corners: Sequence[Ints] | None = None
) -> LinePlan:
    """Return the plan of a table over all values of the variables, or over some of each."""
    line = np.zeros((1,) * table.ndim)
    for place in places:
        axis = sop.frontier.index(place.variable)
        positions = place.positions if corners is None else place.positions[corners[axis]]
        line = line + positions.reshape([-1 if n == axis else 1 for n in range(line.ndim)])
    reached = table != NEVER
    return _plan(layer, tuple(places), table[reached], np.broadcast_to(line, table.shape)[reached])


def _plan(layer: int, places: tuple[LineTerm, ...], numbers: Ints, line: Floats) -> LinePlan:
    order = np.argsort(line, kind="stable")
    line, numbers = line[order], numbers[order]
    centre = (line[0] + line[-1]) / 2
    line = line - centre
    length = max(1.0, float(line[-1] - line[0]))
    keep = np.ones(len(line), dtype=np.bool_)
    keep[1:] = np.diff(line) > SAME * length
    groups = np.cumsum(keep) - 1
    if (numbers != numbers[keep][groups]).any():
        raise Obstacle("has values too close to each other to separate in float32")
    line, numbers = line[keep], numbers[keep]
    gaps = np.diff(line)[np.diff(numbers) != 0]
    error = ULP * length + sum(_error(place, layer) for place in places)
    margin = float(gaps.min()) / error if len(gaps) else np.inf
    blur = blurred(line, numbers != np.roll(numbers, 1)) if margin >= SAFETY else 0.0
    if margin < SAFETY or blur > BLUR:
        raise Obstacle(
            f"has {len(np.unique(numbers)):,} values at {len(line):,} points, too close to each other to separate "
            f"in float32 (smallest gap: {margin:.1f} errors, blur: {blur:.3f})"
        )
    return LinePlan(layer, places, -float(centre), line, numbers, margin)


def _error(place: LineTerm, layer: int) -> float:
    """Return the maximum float32 error of a term."""
    variable, span = place.variable, float(np.ptp(place.positions))
    if variable.kind in ("token", "index"):
        return ULP * span
    copied = variable
    while copied.kind == "aggregate" and copied.single and copied.value is not None and copied.value.owner is not None:
        copied = copied.value.owner
    if place.raw or copied.kind in ("token", "index") or len(copied.values) != len(place.positions):
        return ATTENTION * span
    if copied.kind == "cut" and copied.plan is None:
        return ATTENTION * span + BLUR / SAFETY * float(np.diff(np.unique(place.positions)).min(initial=span))
    if copied.kind in ("cut", "map"):
        line, heights = copied.plan.line, np.diff(place.positions[copied.plan.numbers], prepend=0.0)
    else:
        order = np.argsort(raw_position(copied))
        line, heights = raw_position(copied)[order], np.diff(place.positions[order], prepend=0.0)
    return ATTENTION * span + blurred(line, np.abs(heights))


def blurred(line: Floats, heights: Floats) -> float:
    """Return the error of a sum of steps: numbers of size slope x distance must cancel.

    `heights[i]` is the height of the step between the points i - 1 and i.
    """
    heights = heights[1:].astype(np.float64)
    high, low = line[1:][heights > 0], line[:-1][heights > 0]
    threshold, slope = (low + high) / 2, heights[heights > 0] * 2 / (high - low)
    left, right = threshold - line[0], line[-1] - threshold
    turned = left < right
    return ULP * float(max((slope * left)[turned].sum(), (slope * right)[~turned].sum()))


def _changes(plan: LinePlan) -> int:
    return int((np.diff(plan.numbers) != 0).sum())


def _sums(sop: TabulatedSOp) -> Iterable[TabulatedSOp]:
    """Yield additive s-ops of the same variables that this one may be a function of."""
    waiting, seen = [sop], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen or set(one.frontier) != set(sop.frontier):
            continue
        seen.add(id(one))
        if one.additive is not None:
            yield one
        waiting.extend(one.arguments)


def _sum_places(sop: TabulatedSOp, layer: int) -> list[LineTerm] | None:
    assert sop.additive is not None
    places = []
    for variable, numbers in sop.additive.items():
        free = is_free(variable, layer)
        if not free and not _affine(raw_position(variable), numbers):
            return None
        places.append(LineTerm(variable, numbers, raw=not free))
    return places


def _affine(x: Floats, y: Floats) -> bool:
    """Return True if y = a x + b."""
    if np.ptp(x) == 0:
        return bool(np.ptp(y) == 0)
    low, high = int(x.argmin()), int(x.argmax())
    slope = (y[high] - y[low]) / (x[high] - x[low])
    return bool(np.abs(y - y[low] - slope * (x - x[low])).max() <= 1e-12 * max(1.0, float(np.abs(y).max())))


def _determines(candidate: TabulatedSOp, sop: TabulatedSOp) -> bool:
    """Return True if equal values of the candidate imply equal values of the s-op."""
    reached = sop.table != NEVER
    given, result = spread(candidate, sop.frontier)[reached], sop.table[reached]
    if (given == NEVER).any():
        return False
    first = np.full(len(candidate.values), NEVER)
    first[given[::-1]] = result[::-1]
    return bool((first[given] == result).all())


def _orders(sop: TabulatedSOp, layer: int) -> list[tuple[TabulatedSOp, ...]]:
    """Return orders of the variables to try, innermost first. Raw variables, whose gaps are small, are innermost."""
    raw = [v for v in sop.frontier if not is_free(v, layer)]
    free = sorted((v for v in sop.frontier if is_free(v, layer)), key=lambda v: -len(v.values))
    if any(v.kind == "cut" and v.layer >= layer for v in raw):
        raise Obstacle("needs a value that is computed in the same layer")
    if len(sop.frontier) > 3 or sop.table.size > 4000:
        return [(*raw, *free)]
    return [(*a, *b) for a in permutations(raw) for b in permutations(free)]


def _radix(order: Sequence[TabulatedSOp], classes: Mapping[TabulatedSOp, Floats | None]) -> list[LineTerm]:
    places: list[LineTerm] = []
    span, gap = 0.0, 1.0
    for variable in order:
        own_classes = classes[variable]
        positions = raw_position(variable) if own_classes is None else own_classes
        rising = np.unique(positions)
        own = float(np.diff(rising).min()) if len(rising) > 1 else 1.0
        scale = (span + gap) / own if places else 1.0
        gap = gap if places else own
        positions = positions * scale
        span += float(np.ptp(positions))
        places.append(LineTerm(variable, positions, raw=own_classes is None))
    return places


def _classes(sop: TabulatedSOp, variable: TabulatedSOp) -> Floats:
    """Return the class of each value of a variable. The function does not distinguish values of the same class."""
    rows = np.moveaxis(sop.table, sop.frontier.index(variable), 0)
    first = np.ones(len(rows), dtype=np.bool_)  # first row of each run of equal rows
    first[1:] = (rows[1:] != rows[:-1]).any(axis=tuple(range(1, rows.ndim)))
    numbers: dict[bytes, int] = {}
    of_runs = np.array([float(numbers.setdefault(row.tobytes(), len(numbers))) for row in rows[first]])
    return of_runs[np.cumsum(first) - 1]


def steps(plan: LinePlan, outputs_VR: Floats) -> ReluSteps:
    """Return the neurons that compute some functions of the values from the line."""
    y_PR = outputs_VR[plan.numbers]
    jumps_PR = np.diff(y_PR, axis=0)
    changed = np.abs(jumps_PR).max(axis=1, initial=0.0) > 0
    low, high, jumps_NR = plan.line[:-1][changed], plan.line[1:][changed], jumps_PR[changed]
    threshold, slope = (low + high) / 2, 2 / (high - low)
    # Counted from the left a step is 1 after its threshold; from the right it is -1 before it.
    right = threshold - plan.line[0] < plan.line[-1] - threshold
    sign = np.where(right, -1.0, 1.0)
    offset = _coarse(-sign * slope * threshold, slope * np.ptp(plan.line))
    # The two neurons of a step are adjacent, so that their contributions cancel at once.
    slopes = np.repeat(sign * slope, 2)
    offsets = np.stack([offset + 0.5, offset - 0.5], axis=1).ravel()
    outputs_NR = np.stack([sign[:, None] * jumps_NR, -sign[:, None] * jumps_NR], axis=1).reshape(-1, jumps_NR.shape[1])
    base_R = y_PR[0] + jumps_NR[right].sum(axis=0)
    return ReluSteps(slopes, offsets, outputs_NR, base_R)


def without_line(plan: LinePlan, made: ReluSteps, place: int) -> ReluSteps:
    """Add a neuron that subtracts the line, without its constant, from one of the outputs."""
    shift = float(np.ptp(plan.line)) or 1.0  # twice the shift that keeps the neuron active
    outputs_NR = np.vstack([made.outputs_NR, np.zeros((1, made.outputs_NR.shape[1]))])
    outputs_NR[-1, place] = -1.0
    base_R = made.base_R.copy()
    base_R[place] += shift + plan.constant
    return ReluSteps(np.append(made.slopes_N, 1.0), np.append(made.offsets_N, shift), outputs_NR, base_R)


def _coarse(offset: Floats, most: Floats) -> Floats:
    """Round offsets so that the two of a step stay exactly 1 apart in float32, even after the line is added."""
    unit = 2.0 ** np.ceil(np.log2(np.maximum(np.maximum(np.abs(offset), most), 1.0) + 1.0)) * ULP * 2
    return np.asarray(np.round(offset / unit) * unit)
