"""Lowers s-ops to heads and neurons, outputs first: readers request functions of an s-op.

A **slot** is one number of the residual stream: a function of the values of one variable (or of one s-op of several
variables). There is no fixed encoding: the slots of a variable span the requested functions. That is one-hot if a `<`
needs it, two numbers for `==` alone, one if it is only output. A request is read as a linear form of slots.

    token, index       slots are columns of the embedding and of the position table
    aggregate          of one value: attention copies any function; of a mean: a slot, other functions are steps
    width              attention gives 1/(c+1); the feed-forward after it replaces that by the requested functions
    several variables  steps along a line, or nothing at all if it is a sum and read as one

BOS precedes every input and is the sink of every head. It attends only to itself, so its vector is known. A form is 0
at BOS, whatever its slots hold, unless stated otherwise (the weight of the slot `bos` ensures that).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from allyouneed.rasp.compiler.elementwise import (
    LinePlan,
    LineTerm,
    ReluSteps,
    plan_of_variable,
    raw_position,
    steps,
    without_line,
)
from allyouneed.rasp.compiler.ir import Floats, TabulatedSOp, term_key
from allyouneed.rasp.compiler.refusal import Obstacle
from allyouneed.rasp.compiler.schedule import ProgramIR, is_sum
from allyouneed.rasp.compiler.scores import Side, TermScore, score_term

BOS_PULL = 4.0  # score by which BOS prefers itself, in units of the gap between selected and not


@dataclass(eq=False)
class Slot:
    """A number of the residual stream."""

    owner: TabulatedSOp | None  # None: the slot that marks BOS
    what: str
    function: Floats  # of the owner's values
    written: int  # the layer that writes it; 0: the embedding
    at_bos: float = 0.0
    raw_at_bos: float = 0.0  # after the attention that writes it, before the feed-forward
    place: int = -1


@dataclass(eq=False)
class LinearForm:
    """A linear form of slots, defined by its meaning: a sum of functions of values."""

    parts: list[tuple[TabulatedSOp, Floats, bool]] = field(
        default_factory=list
    )  # (owner, function, raw: as attention wrote it)
    constant: float = 0.0
    at_bos: float = 0.0


@dataclass(eq=False)
class HeadIR:
    """One head: the products of queries and keys, and the forms that it writes into slots."""

    label: str
    counts: bool  # the sink scores as much as a selected key
    products: list[tuple[LinearForm, LinearForm]] = field(default_factory=list)
    values: list[tuple[LinearForm, Slot]] = field(default_factory=list)


@dataclass(eq=False)
class NeuronGroup:
    """The steps along one line, and the slots that they write."""

    label: str
    line: LinearForm
    steps: ReluSteps
    slots: list[Slot]
    margin: float


@dataclass(eq=False)
class LayerIR:
    """The heads, neurons and biases of one layer."""

    heads: dict[object, HeadIR] = field(default_factory=dict)
    neurons: list[NeuronGroup] = field(default_factory=list)
    biases: list[tuple[Slot, float]] = field(default_factory=list)  # added by the attention's output


@dataclass(eq=False)
class Readout:
    """How an output is read: each value is a point, and the point nearest to the computed one scores highest."""

    name: str
    sop: TabulatedSOp
    forms: list[LinearForm]  # one for each coordinate of a point
    points_VN: Floats


@dataclass(eq=False)
class Network:
    """The whole model except its numeric weights."""

    layers: list[LayerIR]
    slots: list[Slot]
    readouts: list[Readout]
    of_owner: dict[int, list[Slot]]
    raw: dict[int, Slot]


def lower(program: ProgramIR) -> Network:
    """Return every slot, head and neuron that the outputs need."""
    lowering = _Lowering(program)
    readouts = [lowering.readout(name, sop) for name, sop in program.outputs.items()]
    for sop in sorted(program.sops, key=lambda sop: -sop.order):
        if id(sop) in lowering.requested or id(sop) in lowering.requested_raw:
            lowering.make(sop)
    for base in (program.token, program.index):
        lowering.basis(base, written=0)
    layers = [lowering.layers.get(number, LayerIR()) for number in range(1, max(lowering.layers, default=0) + 1)]
    bos = Slot(None, "bos", np.ones(1), 0, at_bos=1.0)
    return Network(
        layers, [bos, *sorted(lowering.slots, key=lambda slot: slot.written)], readouts, lowering.of_owner, lowering.raw
    )


class _Lowering:
    def __init__(self, program: ProgramIR) -> None:
        self.program = program
        self.layers: dict[int, LayerIR] = {}
        self.slots: list[Slot] = []
        self.requested: dict[int, list[Floats]] = {}
        self.requested_raw: set[int] = set()
        self.of_owner: dict[int, list[Slot]] = {}
        self.raw: dict[int, Slot] = {}

    def layer(self, number: int) -> LayerIR:
        return self.layers.setdefault(number, LayerIR())

    # --- requests --------------------------------------------------------------------------------------------------

    def read(self, sides: Sequence[Side], constant: float = 0.0, at_bos: float = 0.0, scale: float = 1.0) -> LinearForm:
        """Return the sum of some functions, one column each, as a form."""
        form = LinearForm(constant=constant, at_bos=at_bos)
        for sop, functions in sides:
            column = functions[:, 0] * scale
            if sop.owner is None:
                form.constant += float(column[0])
            elif is_sum(sop, functions):
                self._read_sum(form, sop, column)
            else:
                self._request(form, sop.owner, sop.over_owner(column))
        return form

    def _read_sum(self, form: LinearForm, sop: TabulatedSOp, column: Floats) -> None:
        numbers = sop.numbers()
        low, high = int(numbers.argmin()), int(numbers.argmax())
        slope = float(column[high] - column[low]) / float(numbers[high] - numbers[low]) if low != high else 0.0
        form.constant += float(column[low]) - slope * float(numbers[low]) + slope * sop.constant
        assert sop.additive is not None
        for variable, own in sop.additive.items():
            self._request(form, variable, slope * own)

    def _request(self, form: LinearForm, owner: TabulatedSOp, function: Floats) -> None:
        if owner.kind == "cut" and owner.plan is None:  # a function of one variable: request it from that variable
            cut_from = owner.arguments[0]
            assert cut_from.owner is not None
            owner, function = cut_from.owner, cut_from.over_owner(function)
        self.requested.setdefault(id(owner), []).append(function)
        form.parts.append((owner, function, False))

    def line(self, places: Sequence[LineTerm], constant: float) -> LinearForm:
        """Return the line of a plan as a form."""
        form = LinearForm(constant=constant)
        for place in places:
            if place.raw:
                self.requested_raw.add(id(place.variable))
                form.parts.append((place.variable, place.positions, True))
            else:
                self._request(form, place.variable, place.positions)
        return form

    # --- slots, heads and neurons ----------------------------------------------------------------------------------

    def basis(self, owner: TabulatedSOp, written: int, first: Slot | None = None) -> list[Slot]:
        """Return slots that span the functions requested of an owner; `first` is one that exists already."""
        columns = self.requested.get(id(owner), [])
        slots = [first] if first is not None else []
        spanned = Span(np.ones(len(owner.values)), *(slot.function for slot in slots))
        # One-hot columns first: others are sums of them, but a one-hot column is rarely a sum of others.
        different = {column.tobytes(): column for column in columns}.values()
        slots += [
            Slot(owner, owner.label, _tidy(column), written)
            for column in sorted(different, key=np.count_nonzero)
            if spanned.add(column)
        ]
        self.of_owner[id(owner)] = slots
        self.slots += [slot for slot in slots if slot is not first]
        return slots

    def make(self, sop: TabulatedSOp) -> None:
        """Create the heads or neurons that compute a requested s-op."""
        if sop.kind == "width":
            self._make_width(sop)
        elif sop.kind == "aggregate":
            self._make_aggregate(sop)
        elif sop.owner is sop:
            self._feed(sop, self.basis(sop, sop.layer))

    def _feed(self, sop: TabulatedSOp, slots: list[Slot], instead: Slot | None = None) -> None:
        """Add neurons that write slots; the present value of `instead`, a point of the line, is subtracted."""
        if not slots:
            return
        outputs = np.stack([slot.function for slot in slots], axis=1)
        place = slots.index(instead) if instead is not None else None
        moved = place is not None and self._subtract_by_neuron(sop, outputs, place)
        try:
            plan = sop.plan if sop.kind in ("map", "cut") else plan_of_variable(sop, outputs)
        except Obstacle as reason:
            raise Obstacle(f"{sop.label}: {reason}") from None
        assert isinstance(plan, LinePlan)
        made = steps(plan, outputs)
        if moved and place is not None:
            made = without_line(plan, made, place)
        for slot, base in zip(slots, made.base_R, strict=True):
            slot.at_bos += float(base)
        line = self.line(plan.places, plan.constant)
        self.layer(plan.layer).neurons.append(NeuronGroup(sop.label, line, made, slots, plan.margin))

    @staticmethod
    def _subtract_by_neuron(sop: TabulatedSOp, outputs: Floats, place: int) -> bool:
        """Return True if a neuron should subtract the present value; otherwise subtract it from the steps' outputs.

        The latter is free if there is a step between any two values anyway, as for a count.
        """
        less = outputs.copy()
        less[:, place] -= raw_position(sop)
        order = np.argsort(raw_position(sop))
        jumps, all_jumps = (int(np.diff(some[order], axis=0).any(axis=1).sum()) for some in (outputs, less))
        if 2 * jumps + 1 < 2 * all_jumps:
            return True
        outputs[:] = less
        return False

    def _make_width(self, sop: TabulatedSOp) -> None:
        assert sop.selector is not None
        raw = Slot(sop, f"1/(1 + {sop.label})", raw_position(sop), sop.layer, at_bos=1.0, raw_at_bos=1.0)
        self.slots.append(raw)
        self.raw[id(sop)] = raw
        head = self.head(sop, 0, counts=True)
        head.values.append((LinearForm(at_bos=1.0), raw))
        # The count replaces 1/(c+1), which is not read after this layer.
        columns = self.requested.get(id(sop), [])
        if columns:
            wanted = max(columns, key=lambda column: int(np.count_nonzero(column)))
            self._replace(sop, raw, wanted)

    def _make_aggregate(self, sop: TabulatedSOp) -> None:
        assert sop.value is not None
        columns = self.requested.get(id(sop), [])
        if sop.single:
            for slot in self.basis(sop, sop.layer):
                self._copy(sop, slot)
            return
        raw = Slot(sop, sop.label, sop.numbers(), sop.layer)
        self.slots.append(raw)
        self.raw[id(sop)] = raw
        self._copy(sop, raw)
        plain = Span(np.ones(len(sop.values)), raw.function)
        if not columns or any(column in plain for column in columns):
            slots = self.basis(sop, sop.layer, first=raw)
            self._feed(sop, [slot for slot in slots if slot is not raw])
            return
        self._replace(sop, raw, columns[0])

    def _replace(self, sop: TabulatedSOp, raw: Slot, function: Floats) -> None:
        """Replace the function in a slot that attention has written, by adding the difference."""
        largest = float(np.abs(raw.function).max())
        raw.what, raw.function = sop.label, _tidy(function, largest)
        self._feed(sop, self.basis(sop, sop.layer, first=raw), instead=raw)

    def _copy(self, sop: TabulatedSOp, slot: Slot) -> None:
        """Add heads that read a function of the value minus that of the default; a bias adds the default again."""
        assert sop.selector is not None
        assert sop.value is not None
        place = {value: number for number, value in enumerate(sop.values)}
        default = float(slot.function[place[sop.default]]) if sop.default in place else 0.0
        of_value = np.array([slot.function[place[value]] for value in sop.value.values]) - default
        slot.at_bos = slot.raw_at_bos = default
        self.layer(sop.layer).biases.append((slot, default))
        for number in range(len(sop.selector.terms)):
            form = self.read([(sop.value, of_value[:, None])])
            self.head(sop, number, counts=False).values.append((form, slot))

    def head(self, sop: TabulatedSOp, number: int, counts: bool) -> HeadIR:
        """Return the head of one term of a selector; aggregates through one selector share it."""
        selection = sop.selector
        assert selection is not None
        term = selection.terms[number]
        heads, key = self.layer(sop.layer).heads, (counts, term_key(term))
        if key not in heads:
            heads[key] = HeadIR(selection.label, counts)
            self._score(heads[key], score_term(selection, number, counts))
        return heads[key]

    def _score(self, head: HeadIR, score: TermScore) -> None:
        for query, key in score.products:
            head.products.append((self.read([query]), self.read([key])))
        if score.keys:
            head.products.append((LinearForm(constant=1.0), self.read(score.keys)))
        sink = -1.0 if score.sink_unused else score.top if head.counts else score.top - 0.5
        to_sink = self.read([*score.tops, *score.raised], constant=sink, at_bos=BOS_PULL)
        head.products.append((to_sink, LinearForm(at_bos=1.0)))

    # --- outputs -------------------------------------------------------------------------------------------------

    def readout(self, name: str, sop: TabulatedSOp) -> Readout:
        """Return the readout of an output."""
        points = _points(sop)
        return Readout(name, sop, [self.read([(sop, point[:, None])]) for point in points], np.stack(points, axis=1))


FAR = 1e6  # maximum square of a point, in squared gaps


def _points(sop: TabulatedSOp) -> list[Floats]:
    """Return points for the values, 1 apart: numbers already computed are scaled, others become integers."""
    count = len(sop.values)
    mean = sop.owner is not None and sop.owner.kind == "aggregate" and not sop.owner.single
    adds = sop.owner is sop and sop.kind == "map" and sop.additive is not None
    if count > 1 and sop.numeric and (mean or adds):
        numbers = sop.numbers()
        gap = float(np.diff(np.unique(numbers)).min())
        centred = (numbers - (numbers.min() + numbers.max()) / 2) / gap
        if float(np.abs(centred).max()) ** 2 <= FAR and (not mean or _is_affine_in_mean(sop)):
            return [centred]
    whole = np.arange(count)
    base = count if count <= 512 else int(np.ceil(count**0.5))
    digits = [whole] if base == count else [whole % base, whole // base]
    return [(digit - (digit.max() / 2)) for digit in digits]


def _is_affine_in_mean(sop: TabulatedSOp) -> bool:
    """Return True if a function of a mean is affine in the mean."""
    assert sop.owner is not None
    return sop.over_owner(sop.numbers()) in Span(np.ones(len(sop.owner.values)), sop.owner.numbers())


class Span:
    """The linear span of some columns."""

    def __init__(self, *columns: Floats) -> None:
        self.units_NV = np.empty((0, len(columns[0])))  # orthonormal
        for column in columns:
            self.add(column)

    def _rest(self, column: Floats) -> Floats | None:
        """Return the normalised component outside the span; None if there is none."""
        rest = column
        for _ in range(2):  # twice: one pass leaves rounding errors of the column's size
            rest = rest - (self.units_NV @ rest) @ self.units_NV
        size = math.sqrt(rest @ rest)
        return rest / size if size > 1e-9 * math.sqrt(column @ column) else None

    def __contains__(self, column: Floats) -> bool:
        return self._rest(column) is None

    def add(self, column: Floats) -> bool:
        """Add a column. Return False if it was in the span already."""
        rest = self._rest(column)
        if rest is not None:
            self.units_NV = np.concatenate([self.units_NV, rest[None]])
        return rest is not None


def _tidy(column: Floats, size: float = 1.0) -> Floats:
    """Scale a column by a power of two to about `size`, so that integers stay exact in float32."""
    largest = float(np.abs(column).max())
    if largest == 0:
        return column
    return np.asarray(column / 2.0 ** math.ceil(math.log2(largest / size)))
