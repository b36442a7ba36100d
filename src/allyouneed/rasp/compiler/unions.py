"""The mean over a union of selectors, computed by one head.

With one head for each selector, the mean would need another layer to divide sums by counts. One head suffices if its
keys and queries encode the variables of all selectors at once.
"""

from collections.abc import Callable, Sequence

import numpy as np

from allyouneed.rasp.atoms import Atom
from allyouneed.rasp.compiler import selectors
from allyouneed.rasp.compiler.domains import Bounds
from allyouneed.rasp.compiler.ir import Condition, Ints, Selection, TabulatedSOp
from allyouneed.rasp.compiler.refusal import Obstacle

PAIR = 256  # maximum combinations of classes on the smaller side of a union

Make = Callable[
    [Callable[..., Atom], tuple[TabulatedSOp, ...], str], TabulatedSOp
]  # builds a new s-op from a function of others


def merge_union(selection: Selection, make: Make, bounds: Bounds) -> Selection:
    """Return an equivalent selector that compares one joint key with one joint query.

    The joint key combines all variables that the union compares on the key side, the joint query those on the query
    side. Values that no condition distinguishes share a class, which keeps the number of combinations small.
    """
    conditions = [condition for term in selection.terms for condition in term]
    sides = []
    for axis in (0, 1):
        owners = list(dict.fromkeys(one.keys if axis == 0 else one.queries for one in conditions))
        sides.append([(o, _classes_of(o, axis, conditions)) for o in owners if o is not None])
    joint = [_pair(side, selection.label, make) for side in sides]
    shape = tuple(len(one.values) for one in joint)
    if shape[0] * shape[1] > selectors.RELATION or min(shape) > PAIR:
        raise Obstacle(
            f"is the mean over a union of selectors on different s-ops, which needs a head of width {min(shape):,}; "
            f"at most {PAIR:,} is supported"
        )
    relation = np.zeros(shape, dtype=np.bool_)
    for term in selection.terms:
        holds = np.ones(shape, dtype=np.bool_)
        for one in term:
            rows = _digit(joint[0], one.keys, sides[0])
            columns = _digit(joint[1], one.queries, sides[1])
            holds &= one.relation[np.ix_(rows, columns)]
        relation |= holds
    terms = selectors.simplify((Condition(joint[0].owner, joint[1].owner, relation),), bounds)
    lifted = tuple(tuple(_lifted(one, joint) for one in term) for term in terms)
    return Selection(selection.label, lifted, selection.nonempty, selection.at_most_one)


def _pair(side: list[tuple[TabulatedSOp, Ints]], label: str, make: Make) -> TabulatedSOp:
    """Return the joint s-op of one side: its value is the index of a combination of classes."""
    sizes = [int(classes.max()) + 1 for _, classes in side]
    places = [{value: number for number, value in enumerate(sop.values)} for sop, _ in side]

    def call(*atoms: Atom) -> Atom:
        number = 0
        for atom, place, size, (_, classes) in zip(atoms, places, sizes, side, strict=True):
            number = number * size + int(classes[place[atom]])
        return number

    return make(call, tuple(sop for sop, _ in side), f"sides of {label}")


def _classes_of(owner: TabulatedSOp, axis: int, conditions: Sequence[Condition]) -> Ints:
    """Return the class of each value of an s-op. No condition on this side distinguishes values of the same class."""
    relations = [np.moveaxis(one.relation, axis, 0) for one in conditions if (one.keys, one.queries)[axis] is owner]
    numbers: dict[bytes, int] = {}
    rows = np.ascontiguousarray(np.concatenate(relations, axis=1))
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in rows])


def _digit(joint: TabulatedSOp, owner: TabulatedSOp | None, side: list[tuple[TabulatedSOp, Ints]]) -> Ints:
    """Return, for each value of a joint s-op, a representative value of one of its parts."""
    number = np.array(joint.values, dtype=np.int64)
    if owner is None:
        return np.zeros(len(number), dtype=np.int64)
    for sop, classes in reversed(side):
        size = int(classes.max()) + 1
        if sop is owner:
            first = np.array([int((classes == c).argmax()) for c in range(size)])
            return first[number % size]
        number = number // size
    raise AssertionError("the owner is not among the side's s-ops")


def _lifted(condition: Condition, joint: list[TabulatedSOp]) -> Condition:
    """Convert a relation between joint s-ops to one between their owners."""
    relation = condition.relation
    for axis, side in enumerate(joint):
        if side.owner is not None and side.owner is not side:
            relation = relation.take(np.maximum(side.table, 0), axis)
    return Condition(joint[0].owner, joint[1].owner, relation)
