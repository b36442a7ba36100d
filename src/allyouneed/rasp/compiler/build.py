"""Builds the intermediate representation: s-ops with domains, tables and layers, inputs first.

Common subexpressions are built once, constants are folded, and sums of means through one selector become one mean. A
node that cannot be compiled is recorded with its reason. Its dependents are skipped; all other nodes are checked too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from allyouneed.rasp.atoms import CONVERSIONS, FUNCTIONS, Atom
from allyouneed.rasp.compiler import selectors
from allyouneed.rasp.compiler.domains import GRID, LARGEST, SUM_GRID, Bounds, distinct, means, tabulate
from allyouneed.rasp.compiler.ir import Floats, Selection, TabulatedSOp, term_key, variable
from allyouneed.rasp.compiler.refusal import CannotCompile, Obstacle
from allyouneed.rasp.compiler.schedule import ProgramIR, cut_to_size, ready_layer, side_layer
from allyouneed.rasp.compiler.scores import score_term
from allyouneed.rasp.compiler.unions import merge_union
from allyouneed.rasp.compiler.widths import Width, match_width
from allyouneed.rasp.graph import Aggregate, Combined, Constant, Indices, Map, Node, Select, Selector, SOp, Tokens
from allyouneed.rasp.labels import title


def build(
    outputs: Mapping[str, SOp], vocabulary: Sequence[Atom], bounds: Bounds, names: Mapping[Node, str] | None = None
) -> ProgramIR:
    """Return all s-ops of a program. Raise CannotCompile with every reason if any node cannot be compiled."""
    builder = _Builder(ProgramIR(vocabulary, bounds), names or {})
    for name, root in outputs.items():
        builder.build(root)
        sop = builder.done.get(builder.number_of(root))
        if isinstance(sop, TabulatedSOp):
            builder.program.outputs[name] = sop
            builder.attempt(root, lambda sop=sop: ready_layer(sop, builder.program))
    if builder.reasons:
        raise CannotCompile(builder.reasons)
    return builder.program


class _Builder:
    def __init__(self, program: ProgramIR, names: Mapping[Node, str]) -> None:
        self.program, self.names, self.bounds = program, names, program.bounds
        self.reasons: list[str] = []
        self.number: dict[int, int] = {}  # of each node id: equal for nodes that compute the same
        self.keys: dict[Any, int] = {}
        self.done: dict[int, TabulatedSOp | selectors.Terms | None] = {}  # by number; None if it cannot be compiled
        self.selections: dict[int, Selection] = {}
        self.kept: list[Node] = []  # keeps nodes alive, so that ids stay unique
        self.made: dict[Any, TabulatedSOp] = {}
        self.means: dict[Any, tuple[Atom, ...]] = {}
        self.widths: dict[int, Width | None] = {}

    # --- the walk ------------------------------------------------------------------------------------------------

    def build(self, root: Node) -> None:
        """Build a node and all its parts. Iterative, because programs may be deep."""
        self._number_all(root)
        waiting: list[tuple[Node, bool]] = [(root, False)]
        while waiting:
            node, ready = waiting.pop()
            if self.number_of(node) in self.done:
                continue
            width = self._as_width(node)
            parts = (width[0],) if width else node.parts
            if not ready:
                waiting.append((node, True))
                waiting.extend((part, False) for part in reversed(parts))
            else:
                made = [self.done[self.number_of(part)] for part in parts]
                self.done[self.number_of(node)] = (
                    None if any(one is None for one in made) else self.attempt(node, lambda: self._make(node, width))  # noqa: B023
                )

    def _number_all(self, root: Node) -> None:
        waiting: list[tuple[Node, bool]] = [(root, False)]
        while waiting:
            node, ready = waiting.pop()
            if id(node) in self.number:
                continue
            if not ready:
                waiting.append((node, True))
                waiting.extend((part, False) for part in node.parts)
            else:
                key = (node.key, *(self.number[id(part)] for part in node.parts))
                self.number[id(node)] = self.keys.setdefault(key, len(self.keys))
                self.kept.append(node)

    def _as_width(self, node: Node) -> Width | None:
        """Return the selector that a node counts, numbering it if it is new."""
        if id(node) not in self.widths:
            width = match_width(node, self.number) if isinstance(node, SOp) else None
            if width is not None:
                self._number_all(width[0])
            self.widths[id(node)] = width
        return self.widths[id(node)]

    def number_of(self, node: Node) -> int:
        return self.number[id(node)]

    def attempt(self, node: Node, make: Any) -> Any:
        """Return the result of `make`; on an obstacle, record the reason and return None."""
        try:
            return make()
        except Obstacle as reason:
            self.reasons.append(f"{self._label(node)}: {reason}")
            return None

    def _label(self, node: Node) -> str:
        return title(node, self.names, levels=3)

    # --- one node ------------------------------------------------------------------------------------------------

    def _make(self, node: Node, width: Width | None) -> TabulatedSOp | selectors.Terms:
        if width is not None:
            return self._width(self._selection(width[0]), width[1], self._label(node))
        match node:
            case Tokens(convert):
                return self._map(CONVERSIONS[convert], (self.program.token,), self._label(node))
            case Indices():
                return self.program.index
            case Constant(value):
                return self._constant(value)
            case Map(function, arguments):
                made = tuple(self._sop(argument) for argument in arguments)
                return self._map(function.call, made, self._label(node), function.name)
            case Aggregate(selector, value, default):
                return self._aggregate(self._selection(selector), self._sop(value), default, self._label(node))
            case Select(keys, queries, comparison):
                return selectors.compare(self._sop(keys), self._sop(queries), comparison, self.bounds)
            case Combined(how, operands):
                terms = [self._terms(operand) for operand in operands]
                if how == "not":
                    return selectors.complement(terms[0], self.bounds)
                return (selectors.conjunction if how == "and" else selectors.disjunction)(
                    terms[0], terms[1], self.bounds
                )
        raise AssertionError(f"no such node: {node!r}")

    def _sop(self, node: Node) -> TabulatedSOp:
        sop = self.done[self.number_of(node)]
        assert isinstance(sop, TabulatedSOp)
        return sop

    def _terms(self, node: Node) -> selectors.Terms:
        terms = self.done[self.number_of(node)]
        assert isinstance(terms, tuple)
        return terms

    def _selection(self, node: Selector) -> Selection:
        number = self.number_of(node)
        if number not in self.selections:
            self.selections[number] = selectors.selection(self._label(node), self._terms(node), self.bounds)
        return self.selections[number]

    def _constant(self, value: Atom) -> TabulatedSOp:
        sop = TabulatedSOp("constant", repr(value), (value,))
        if not isinstance(value, str):
            if not abs(value) <= LARGEST:
                raise Obstacle(
                    f"the constant exceeds {LARGEST:,}, the largest number that a model can represent exactly"
                )
            sop.additive, sop.constant = {}, float(value)
        return sop

    def _map(self, call: Any, arguments: tuple[TabulatedSOp, ...], label: str, name: str = "") -> TabulatedSOp:
        adds_up = name in ("+", "-") and all(argument.additive is not None for argument in arguments)
        arguments = cut_to_size(arguments, self.program, SUM_GRID if adds_up else GRID)
        merged = self._merge_means(call, arguments, label, name)
        if merged is not None:
            return merged
        frontier, table, values = tabulate(call, arguments, self.bounds)
        if not frontier:
            return self._constant(values[0])
        sop = TabulatedSOp("map", label, values, frontier, table, arguments, call=call)
        _add_up(sop, arguments, name)
        return self.program.add(sop)

    def _cached(self, key: Any, make: Any) -> TabulatedSOp:
        if key not in self.made:
            self.made[key] = self.program.add(make())
        return self.made[key]

    def _merge_means(
        self, call: Any, arguments: tuple[TabulatedSOp, ...], label: str, name: str
    ) -> TabulatedSOp | None:
        """Replace a sum or difference of means through one selector by the mean of the sum or difference."""
        if name not in ("+", "-") or not all(a.kind == "aggregate" and a.numeric and not a.single for a in arguments):
            return None
        left, right = arguments
        if left is right or left.selector is not right.selector or left.value is None or right.value is None:
            return None
        assert left.selector is not None
        value = self._map(call, (left.value, right.value), label, name)
        return self._aggregate(left.selector, value, call(left.default, right.default), label)

    # --- attention -----------------------------------------------------------------------------------------------

    def _width(self, selection: Selection, offset: int, label: str) -> TabulatedSOp:
        if not selection.terms:
            return self._constant(offset)
        counts = tuple(self._count(selection, number, label) for number in range(len(selection.terms)))
        total = counts[0]
        for one in counts[1:]:
            total = self._map(FUNCTIONS["+"], (total, one), label, "+")
        # Under a causal mask a rank counts only the positions before.
        total.permutes = not self.bounds.causal and selectors.is_total_order(selection.terms)
        return self._map(FUNCTIONS["+"], (total, self._constant(offset)), label, "+") if offset else total

    def _count(self, selection: Selection, number: int, label: str) -> TabulatedSOp:
        """Return the width of one term of a selector."""
        own = selection
        if len(selection.terms) > 1:
            own = selectors.selection(selection.label, selection.terms[number : number + 1], self.bounds)
        least, most = int(own.nonempty), 1 if own.at_most_one else self.bounds.length
        if least == most:
            return self._constant(most)

        def make() -> TabulatedSOp:
            layer = 1 + self._selector_layer(own, 0, counts=True)
            everywhere = not own.terms[0]
            values = range(least, most + 1)
            return variable("width", label, values, selector=own, everywhere=everywhere, layer=layer)

        made = self._cached(("width", term_key(own.terms[0])), make)
        if len(selection.terms) > 1:
            made.group = id(selection)
        return made

    def _aggregate(self, selection: Selection, value: TabulatedSOp, default: Atom, label: str) -> TabulatedSOp:
        if not selection.terms:
            return self._constant(default)
        kinds = {type(one) for one in value.values}
        if str in kinds and kinds & {int, float} and not selection.at_most_one:
            # Strings have no mean, numbers have one; only the input decides which it is.
            raise Obstacle("averages values that are strings on some inputs and numbers on others")
        numbers = value.numeric and not all(isinstance(one, bool) for one in value.values)
        single = not numbers or len(value.values) == 1 or selection.at_most_one
        if not single and len(selection.terms) > 1:
            selection = merge_union(selection, self._map, self.bounds)
        extra = () if selection.nonempty else (default,)
        if single:
            values = distinct((*value.values, *extra))
        else:
            values = self._means(value.values, None if selection.nonempty else default)
        if not extra and len(value.values) == 1:
            return value

        def make() -> TabulatedSOp:
            needed = [self._selector_layer(selection, number) for number in range(len(selection.terms))]
            layer = 1 + max(*needed, ready_layer(value, self.program))
            return variable(
                "aggregate",
                label,
                values,
                selector=selection,
                value=value,
                default=default,
                single=single,
                layer=layer,
            )

        key = ("aggregate", tuple(map(term_key, selection.terms)), id(value), type(default), default)
        return self._cached(key, make)

    def _means(self, values: tuple[Atom, ...], default: Atom | None) -> tuple[Atom, ...]:
        key = values, tuple(map(type, values)), default, type(default)
        if key not in self.means:
            self.means[key] = means(values, default, self.bounds.length)
        return self.means[key]

    def _selector_layer(self, selection: Selection, number: int, counts: bool = False) -> int:
        sides = score_term(selection, number, counts).sides()
        return max((side_layer(side, self.program) for side in sides), default=0)


def _add_up(sop: TabulatedSOp, arguments: tuple[TabulatedSOp, ...], name: str) -> None:
    """Record if an s-op is a sum of functions of one variable each."""
    if not sop.numeric:
        return
    if len(sop.frontier) == 1:
        sop.additive = {sop.frontier[0]: sop.over_owner(sop.numbers())}
        return
    if any(argument.additive is None for argument in arguments):
        return
    weights = _weights(arguments, name)
    if weights is None:
        return
    total: dict[TabulatedSOp, Floats] = {}
    for weight, argument in zip(weights, arguments, strict=True):
        assert argument.additive is not None
        sop.constant += weight * argument.constant
        for v, numbers in argument.additive.items():
            total[v] = total.get(v, 0.0) + weight * numbers
    sop.additive = total


def _weights(arguments: tuple[TabulatedSOp, ...], name: str) -> tuple[float, ...] | None:
    """Return the weight of each argument if the function is a weighted sum of them, else None."""
    if name in ("+", "-") and len(arguments) == 2:
        return (1.0, 1.0 if name == "+" else -1.0)
    if name in ("neg", "pos"):
        return (-1.0 if name == "neg" else 1.0,)
    if name == "*" and len(arguments) == 2:
        for number, (one, other) in enumerate((arguments, arguments[::-1])):
            if not other.frontier:
                weight = float(other.values[0])
                return (weight, 0.0) if number == 0 else (0.0, weight)
            del one
    if name == "/" and not arguments[1].frontier:
        return (1.0 / float(arguments[1].values[0]), 0.0)
    return None
