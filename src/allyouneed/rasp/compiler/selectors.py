"""Selectors as disjoint unions of conjunctions of relations between two variables.

    select(k, q, op)   one condition: relation[a, b] = value a of the owner of k  op  value b of the owner of q
    S and T            conditions on the same two sides become one relation; others form a conjunction
    not S              the complement; not (a and b and c) = not a | a and not b | a and b and not c, which are disjoint
    S or T             S | T without S; conditions on the same two sides become one relation

A condition compares values, not positions. Any comparison, and any and/or/not of comparisons of the same two s-ops (or
of functions of the same two variables), is therefore one matrix of bits: `<=` is no harder than `==`.
"""

from collections.abc import Iterable, Sequence
from itertools import permutations, product

import numpy as np

from allyouneed.rasp.atoms import COMPARISONS, PYTHON_ERRORS
from allyouneed.rasp.compiler.domains import Bounds
from allyouneed.rasp.compiler.ir import NEVER, Bools, Condition, Selection, TabulatedSOp, Term
from allyouneed.rasp.compiler.refusal import Obstacle

RELATION = 4_000_000  # maximum pairs of values of one condition
TERMS = 64  # maximum disjoint conjunctions of one selector

Terms = tuple[Term, ...]
EVERYTHING: Terms = ((),)


def compare(keys: TabulatedSOp, queries: TabulatedSOp, comparison: str, bounds: Bounds) -> Terms:
    """Return the terms of one `select`."""
    pairs = len(keys.values) * len(queries.values)
    if pairs > RELATION:
        raise Obstacle(
            f"compares {len(keys.values):,} with {len(queries.values):,} values; the maximum is {RELATION:,} pairs"
        )
    relation = _compared(keys, queries, comparison)
    for axis, side in enumerate((keys, queries)):
        if side.owner is not None and side.owner is not side:
            relation = relation.take(np.maximum(side.table, 0), axis)
            # An impossible value is never selected and selects nothing.
            lost = side.table == NEVER
            relation[(slice(None),) * axis + (lost,)] = False
    return simplify((Condition(keys.owner, queries.owner, relation),), bounds)


def _compared(keys: TabulatedSOp, queries: TabulatedSOp, comparison: str) -> Bools:
    call = COMPARISONS[comparison]
    if keys.numeric and queries.numeric:
        result: Bools = np.asarray(call(keys.numbers()[:, None], queries.numbers()[None, :]))
        return result
    relation = np.zeros((len(keys.values), len(queries.values)), dtype=np.bool_)
    for row, key in enumerate(keys.values):
        for column, query in enumerate(queries.values):
            try:
                relation[row, column] = call(key, query)
            except PYTHON_ERRORS:
                continue  # the interpreter fails for these values too
    return relation


def simplify(term: Term, bounds: Bounds) -> Terms:
    """Drop conditions that always hold; return no term if one never holds."""
    kept = []
    for condition in term:
        matters = _visible(condition, bounds)
        holds = condition.relation if matters is None else condition.relation[matters]
        if not holds.any():
            return ()
        if not holds.all():
            kept.append(condition)
    return (tuple(kept),)


def _visible(condition: Condition, bounds: Bounds) -> Bools | None:
    """Return where a condition on two indices matters under a causal mask: keys up to the query; None if everywhere."""
    keys = condition.keys
    if bounds.causal and keys is not None and keys is condition.queries and keys.kind == "index":
        seen: Bools = np.triu(np.ones_like(condition.relation))
        return seen
    return None


def conjunction(left: Terms, right: Terms, bounds: Bounds) -> Terms:
    return _limited(term for a in left for b in right for term in _conjoin(a, b, bounds))


def _conjoin(a: Term, b: Term, bounds: Bounds) -> Terms:
    merged = {condition.sides: condition for condition in a}
    for condition in b:
        other = merged.get(condition.sides)
        relation = condition.relation if other is None else condition.relation & other.relation
        merged[condition.sides] = Condition(condition.keys, condition.queries, relation)
    return simplify(tuple(merged.values()), bounds)


def complement(terms: Terms, bounds: Bounds) -> Terms:
    """Return the terms of `not`."""
    result = EVERYTHING
    for term in terms:
        result = conjunction(result, _complement_of_term(term, bounds), bounds)
    return result


def _complement_of_term(term: Term, bounds: Bounds) -> Terms:
    pieces: list[Term] = []
    for number, condition in enumerate(term):
        flipped = Condition(condition.keys, condition.queries, ~condition.relation)
        pieces += simplify((*term[:number], flipped), bounds)
    return tuple(pieces)


def disjunction(left: Terms, right: Terms, bounds: Bounds) -> Terms:
    terms = list(left)
    for term in right:
        pieces: Terms = (term,)
        for other in left:
            pieces = _limited(piece for part in pieces for piece in _minus(part, other, bounds))
        terms += pieces
    return _limited(_merge_terms(terms, bounds))


def _minus(term: Term, other: Term, bounds: Bounds) -> Terms:
    if not _conjoin(term, other, bounds):
        return (term,)
    return conjunction((term,), _complement_of_term(other, bounds), bounds)


def _merge_terms(terms: Sequence[Term], bounds: Bounds) -> list[Term]:
    """Merge terms that differ in one condition only."""
    waiting, done = list(terms), []
    while waiting:
        term = waiting.pop(0)
        for number, other in enumerate(waiting):
            union = _union(term, other)
            if union is not None:
                waiting[number : number + 1] = simplify(union, bounds)
                break
        else:
            done.append(term)
    return done


def _union(a: Term, b: Term) -> Term | None:
    left, right = ({condition.sides: condition for condition in term} for term in (a, b))
    if left.keys() != right.keys():
        return None
    others = [sides for sides in left if not np.array_equal(left[sides].relation, right[sides].relation)]
    if len(others) > 1:
        return None
    for sides in others:
        one = left[sides]
        left[sides] = Condition(one.keys, one.queries, one.relation | right[sides].relation)
    return tuple(left.values())


def _limited(terms: Iterable[Term]) -> Terms:
    listed = tuple(terms)
    if len(listed) > TERMS:
        raise Obstacle(f"is a union of more than {TERMS} disjoint conjunctions; split it or use fewer and/or/not")
    return listed


def selection(label: str, terms: Terms, bounds: Bounds) -> Selection:
    """Return a selector with bounds on the number of selected positions."""
    return Selection(
        label,
        terms,
        nonempty=any(_selects_itself(term) or _finds_index(term, bounds) for term in terms),
        at_most_one=len(terms) == 1 and any(_picks_one(condition) for condition in terms[0]),
    )


def _selects_itself(term: Term) -> bool:
    return all(one.keys is not None and one.keys is one.queries and bool(one.relation.diagonal().all()) for one in term)


def is_total_order(terms: Terms) -> bool:
    """Return True if the selector is a strict total order: it compares s-ops lexicographically, the index among them.

    The number of selected positions is then a rank, and ranks are a permutation of 0, 1, ... n - 1.
    """
    owners = list(dict.fromkeys(one.keys for term in terms for one in term))
    signs = {one: _signs(one) for term in terms for one in term}
    if len(owners) > 3 or any(one.keys is not one.queries or signs[one] is None for one in signs):
        return False
    index = next((number for number, one in enumerate(owners) if one is not None and one.kind == "index"), None)
    patterns = list(product((-1, 0, 1), repeat=len(owners)))

    def selects(pattern: tuple[int, ...]) -> bool:
        place = dict(zip(owners, pattern, strict=True))
        return any(all(place[one.keys] in (signs[one] or ()) for one in term) for term in terms)

    # Equal indices imply the same position.
    possible = [p for p in patterns if index is not None and (p[index] != 0 or not any(p))]
    return bool(possible) and any(
        all(selects(p) == _below(p, order, ways) for p in possible)
        for order in permutations(range(len(owners)))
        for ways in product((-1, 1), repeat=len(owners))
    )


def _below(pattern: tuple[int, ...], order: Sequence[int], ways: Sequence[int]) -> bool:
    """Return True if the first comparison that is not a tie gives 'below'."""
    for number in order:
        if pattern[number]:
            return pattern[number] * ways[number] < 0
    return False


def _signs(condition: Condition) -> tuple[int, ...] | None:
    """Return the signs of key - query that are selected (-1, 0, 1); None if more than the sign matters."""
    relation = condition.relation
    if relation.shape[0] != relation.shape[1]:
        return None
    rows, columns = np.indices(relation.shape)
    found = []
    for sign in (-1, 0, 1):
        part = relation[np.sign(rows - columns) == sign]
        if part.size and part.any() != part.all():
            return None
        found += [sign] if part.any() else []
    return tuple(found)


def _picks_one(condition: Condition) -> bool:
    """Return True if every query selects at most one position."""
    keys = condition.keys
    return keys is not None and keys.permutes and int(condition.relation.sum(axis=0).max()) <= 1


def _finds_index(term: Term, bounds: Bounds) -> bool:
    """Return True if the only condition selects an index that always exists: one provably below the length."""
    if len(term) != 1 or term[0].keys is None or not term[0].keys.permutes or term[0].queries is None:
        return False
    query, relation = term[0].queries, term[0].relation
    known = {v.kind if not v.everywhere else "length" for v in query.frontier}
    if not known <= {"index", "length", "token"}:
        return False
    names = term[0].keys.numbers().astype(np.int64)
    first = np.where(relation.any(axis=0), names[relation.argmax(axis=0)], bounds.length)  # lowest selected index
    selected = np.where(query.table == NEVER, 0, first[query.table])
    at_least = np.ones_like(query.table)  # lower bound of the length: a query at index i implies i + 1
    for axis, v in enumerate(query.frontier):
        if v.kind == "index" or v.everywhere:
            reach = v.numbers().astype(np.int64) + (0 if v.everywhere else 1)
            shape = [-1 if place == axis else 1 for place in range(at_least.ndim)]
            at_least = np.maximum(at_least, reach.reshape(shape))
    return bool((selected < at_least).all())
