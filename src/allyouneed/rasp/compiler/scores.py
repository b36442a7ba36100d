"""Conditions as attention scores: the products of query and key for which softmax selects.

Every condition scores `top` where it holds and at most top - 1 where it does not. A conjunction is therefore the *sum*
of its scores: a key that fails one condition is 1 below a key that fails none. `top` may depend on the query (keys do
not compete across queries), but then the score of the sink must contain it too.

    key alone     [k is one of ...]           the query is the constant 1
    query alone   [q is one of ...]           where it fails, the sink is raised instead: no key is selected
    one to one    u_k = u_q                   2 u_q u_k - u_k^2, top u_q^2: two numbers for any number of values
                                              or sum_b c_b(q) c_b(k) / 2 over +-1 bits, top B/2: tolerates noise
    other         any relation                sum_a [a = class of k] relation[a, q]: as many numbers as classes

(The last is minimal for `<`: the keys selected by a query must be a face of the polytope of all keys, and the faces of
the queries are nested.)
"""

from dataclasses import dataclass, field

import numpy as np

from allyouneed.rasp.compiler.ir import Bools, Condition, Floats, Selection, TabulatedSOp

Side = tuple[TabulatedSOp, Floats]  # functions of the values of a variable or s-op: (values, numbers)


@dataclass
class TermScore:
    """The score of a term: products of query and key, functions of the key alone, and the score of a selected key."""

    products: list[tuple[Side, Side]] = field(default_factory=list)  # (query, key)
    keys: list[Side] = field(default_factory=list)
    top: float = 0.0  # the score of a selected key
    tops: list[Side] = field(default_factory=list)  # added to the top by the query
    raised: list[Side] = field(default_factory=list)  # added to the sink alone by the query
    sink_unused: bool = False  # the sink's score lacks the top; only if something is always selected

    def sides(self) -> list[Side]:
        """Return every function that the score reads."""
        pairs = [side for product in self.products for side in product]
        return [*pairs, *self.keys, *self.tops, *self.raised]


def score_term(selection: Selection, number: int, counts: bool) -> TermScore:
    """Return the score of a term. `counts`: for a width, where the sink scores as much as a selected key."""
    made = selection.scores.get((number, counts))
    if made is None:
        made, term = TermScore(), selection.terms[number]
        for condition in term:
            _add(made, condition, alone=selection.nonempty and selection.at_most_one and len(term) == 1 and not counts)
        selection.scores[number, counts] = made
    assert isinstance(made, TermScore)
    return made


def _add(score: TermScore, condition: Condition, alone: bool) -> None:
    keys, queries, relation = condition.keys, condition.queries, condition.relation
    rows, columns = _classes(relation), _classes(relation.T)
    if keys is not None and len(set(columns.tolist())) == 1:
        score.keys.append((keys, relation[:, :1].astype(float)))
        score.top += 1
        return
    if queries is not None and len(set(rows.tolist())) == 1:
        score.raised.append((queries, (~relation[:1]).T.astype(float)))
        return
    assert keys is not None
    assert queries is not None
    if alone and _same_numbers(condition):
        # Queries may be sums of other values, since their squares are not needed. A single match tolerates noise.
        _square(score, keys, queries, keys.numbers(), queries.numbers(), known=False)
        return
    matched = _matching(relation, rows, columns)
    if matched is None:
        _relate(score, keys, queries, relation, rows, columns)
        return
    bits = max(1, int(max(matched[0].max(), matched[1].max())).bit_length())
    if len(np.intersect1d(*matched)) < bits:
        _relate(score, keys, queries, relation, rows, columns)
    elif bits > 2 and _is_exact(keys) and _is_exact(queries):
        _square(score, keys, queries, matched[0], matched[1], known=True)
    else:
        _match_bits(score, keys, queries, matched, bits)


def _is_exact(sop: TabulatedSOp) -> bool:
    """Return True if its numbers come from the embedding and carry no error."""
    return sop.kind in ("token", "index")


def _same_numbers(condition: Condition) -> bool:
    """Return True if the relation is equality of numbers."""
    keys, queries = condition.keys, condition.queries
    if keys is None or queries is None or not keys.numeric or not queries.numeric:
        return False
    return np.array_equal(condition.relation, keys.numbers()[:, None] == queries.numbers()[None, :])


def _square(
    score: TermScore, keys: TabulatedSOp, queries: TabulatedSOp, of_keys: Floats, of_queries: Floats, known: bool
) -> None:
    both = np.concatenate([of_keys, of_queries])
    centre = (both.min() + both.max()) / 2
    k, q = (of_keys - centre)[:, None], (of_queries - centre)[:, None]
    score.products.append(((queries, 2 * q), (keys, k)))
    score.keys.append((keys, -(k**2)))
    if known:
        score.tops.append((queries, q**2))
    score.sink_unused |= not known


def _match_bits(
    score: TermScore, keys: TabulatedSOp, queries: TabulatedSOp, matched: tuple[Floats, Floats], bits: int
) -> None:
    for bit in range(bits):
        k, q = (np.where(side.astype(np.int64) >> bit & 1, 1.0, -1.0)[:, None] for side in matched)
        score.products.append(((queries, q / 2), (keys, k)))
        score.top += 0.5


def _relate(
    score: TermScore, keys: TabulatedSOp, queries: TabulatedSOp, relation: Bools, rows: Floats, columns: Floats
) -> None:
    if len(set(rows.tolist())) <= len(set(columns.tolist())):
        for number, first in _representatives(rows):
            if relation[first].any():
                k = (rows == number).astype(float)[:, None]
                score.products.append(((queries, relation[first].astype(float)[:, None]), (keys, k)))
    else:
        for number, first in _representatives(columns):
            if relation[:, first].any():
                q = (columns == number).astype(float)[:, None]
                score.products.append(((queries, q), (keys, relation[:, first].astype(float)[:, None])))
    score.top += 1


def _representatives(classes: Floats) -> list[tuple[float, int]]:
    numbers, first = np.unique(classes, return_index=True)
    return list(zip(numbers.tolist(), first.tolist(), strict=True))


def _classes(relation: Bools) -> Floats:
    """Return the class of each row, in order of first occurrence; equal rows share a class."""
    numbers: dict[bytes, int] = {}
    return np.array([float(numbers.setdefault(row.tobytes(), len(numbers))) for row in np.ascontiguousarray(relation)])


def _matching(relation: Bools, rows: Floats, columns: Floats) -> tuple[Floats, Floats] | None:
    """Return equal numbers for matching classes of keys and queries, or None if they do not match one to one."""
    of_rows, of_columns = dict(_representatives(rows)), dict(_representatives(columns))
    small = relation[np.ix_(list(of_rows.values()), list(of_columns.values()))]
    if small.sum(axis=0).max() > 1 or small.sum(axis=1).max() > 1:
        return None
    key_number, query_number = np.zeros(len(of_rows)), np.zeros(len(of_columns))
    number = 0
    for row in range(len(of_rows)):
        key_number[row] = number
        if small[row].any():
            query_number[small[row].argmax()] = number
        number += 1
    for column in range(len(of_columns)):
        if not small[:, column].any():
            query_number[column] = number
            number += 1
    return key_number[rows.astype(np.int64)], query_number[columns.astype(np.int64)]
