"""From s-ops to heads and neurons, outputs first: whoever needs a function of an s-op asks for it.

A **slot** is one number of the residual stream: a function of the values of one variable (or of one s-op of several
variables). There is no fixed encoding: the slots of a variable span what is asked of it, one-hot if a `<` asks for
that, two numbers if only `==` does, one if it is only shown. What is asked is read as a linear form of slots.

    token, index       slots are columns of the embedding and of the position table
    aggregate          of one value: any function of it is copied; of a mean: it is a slot, other functions are steps
    width              attention gives 1/(c+1), the feed-forward after it what is asked, in the place of the former
    several variables  steps along a line, or nothing at all if it is a sum and read as such

BOS stands before every input and is the sink of every head. It reads only itself, so that its vector is known: a form
is 0 there, whatever its slots hold, unless something else is wanted (the weight of the slot `bos` sees to that).
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

BOS_PULL = 4.0  # how far BOS prefers itself, in units of the gap between selected and not


@dataclass(eq=False)
class Slot:
    """A number of the residual stream."""

    owner: TabulatedSOp | None  # None: marks BOS
    what: str
    function: Floats  # of the values of the owner
    written: int  # by this layer; 0: the embedding
    at_bos: float = 0.0
    raw_at_bos: float = 0.0  # between the attention that writes it and the feed-forward after that
    place: int = -1


@dataclass(eq=False)
class LinearForm:
    """A linear form of slots, given by what it means: functions of values, added up."""

    parts: list[tuple[TabulatedSOp, Floats, bool]] = field(
        default_factory=list
    )  # (owner, function, as attention wrote it)
    constant: float = 0.0
    at_bos: float = 0.0


@dataclass(eq=False)
class HeadIR:
    """One head: what queries and keys show each other, and what is read into which slots."""

    label: str
    counts: bool  # the sink scores as much as what is selected
    products: list[tuple[LinearForm, LinearForm]] = field(default_factory=list)
    values: list[tuple[LinearForm, Slot]] = field(default_factory=list)


@dataclass(eq=False)
class NeuronGroup:
    """The steps along one line, and the slots they write."""

    label: str
    line: LinearForm
    steps: ReluSteps
    slots: list[Slot]
    margin: float


@dataclass(eq=False)
class LayerIR:
    heads: dict[object, HeadIR] = field(default_factory=dict)
    neurons: list[NeuronGroup] = field(default_factory=list)
    biases: list[tuple[Slot, float]] = field(default_factory=list)  # added by the attention


@dataclass(eq=False)
class Readout:
    """How an output is read: each of its values is a point, and the nearest to what is computed scores highest."""

    name: str
    sop: TabulatedSOp
    forms: list[LinearForm]  # one for each coordinate
    points_VN: Floats


@dataclass(eq=False)
class Network:
    """All of the model but the numbers."""

    layers: list[LayerIR]
    slots: list[Slot]
    answers: list[Readout]
    of_owner: dict[int, list[Slot]]
    raw: dict[int, Slot]


def lower(program: ProgramIR) -> Network:
    """Every slot, head and neuron that the outputs need."""
    work = _Work(program)
    answers = [work.answer(name, sop) for name, sop in program.outputs.items()]
    for sop in sorted(program.sops, key=lambda sop: -sop.order):
        if id(sop) in work.asked or id(sop) in work.asked_raw:
            work.make(sop)
    for base in (program.token, program.index):
        work.basis(base, written=0)
    layers = [work.layers.get(number, LayerIR()) for number in range(1, max(work.layers, default=0) + 1)]
    bos = Slot(None, "bos", np.ones(1), 0, at_bos=1.0)
    return Network(layers, [bos, *sorted(work.slots, key=lambda slot: slot.written)], answers, work.of_owner, work.raw)


class _Work:
    def __init__(self, program: ProgramIR) -> None:
        self.program = program
        self.layers: dict[int, LayerIR] = {}
        self.slots: list[Slot] = []
        self.asked: dict[int, list[Floats]] = {}
        self.asked_raw: set[int] = set()
        self.of_owner: dict[int, list[Slot]] = {}
        self.raw: dict[int, Slot] = {}

    def layer(self, number: int) -> LayerIR:
        return self.layers.setdefault(number, LayerIR())

    # --- asking --------------------------------------------------------------------------------------------------

    def read(self, sides: Sequence[Side], constant: float = 0.0, at_bos: float = 0.0, scale: float = 1.0) -> LinearForm:
        """The sum of some functions, one column each, as a form."""
        form = LinearForm(constant=constant, at_bos=at_bos)
        for sop, functions in sides:
            column = functions[:, 0] * scale
            if sop.owner is None:
                form.constant += float(column[0])
            elif is_sum(sop, functions):
                self._read_sum(form, sop, column)
            else:
                self._ask(form, sop.owner, sop.over_owner(column))
        return form

    def _read_sum(self, form: LinearForm, sop: TabulatedSOp, column: Floats) -> None:
        numbers = sop.numbers()
        low, high = int(numbers.argmin()), int(numbers.argmax())
        slope = float(column[high] - column[low]) / float(numbers[high] - numbers[low]) if low != high else 0.0
        form.constant += float(column[low]) - slope * float(numbers[low]) + slope * sop.constant
        assert sop.additive is not None
        for variable, own in sop.additive.items():
            self._ask(form, variable, slope * own)

    def _ask(self, form: LinearForm, owner: TabulatedSOp, function: Floats) -> None:
        if owner.kind == "cut" and owner.plan is None:  # of a function of one variable, which can be asked itself
            cut_from = owner.arguments[0]
            assert cut_from.owner is not None
            owner, function = cut_from.owner, cut_from.over_owner(function)
        self.asked.setdefault(id(owner), []).append(function)
        form.parts.append((owner, function, False))

    def line(self, places: Sequence[LineTerm], constant: float) -> LinearForm:
        """The line of a plan, as a form."""
        form = LinearForm(constant=constant)
        for place in places:
            if place.raw:
                self.asked_raw.add(id(place.variable))
                form.parts.append((place.variable, place.positions, True))
            else:
                self._ask(form, place.variable, place.positions)
        return form

    # --- answering -----------------------------------------------------------------------------------------------

    def basis(self, owner: TabulatedSOp, written: int, first: Slot | None = None) -> list[Slot]:
        """Slots that span what was asked of an owner; `first` is one that is there anyway."""
        columns = self.asked.get(id(owner), [])
        slots = [first] if first is not None else []
        spanned = Span(np.ones(len(owner.values)), *(slot.function for slot in slots))
        # One-hot columns first: others are sums of them, while a one-hot column is a sum of few others.
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
        """Whatever computes an s-op of which something was asked."""
        if sop.kind == "width":
            self._make_width(sop)
        elif sop.kind == "aggregate":
            self._make_aggregate(sop)
        elif sop.owner is sop:
            self._feed(sop, self.basis(sop, sop.layer))

    def _feed(self, sop: TabulatedSOp, slots: list[Slot], instead: Slot | None = None) -> None:
        """NeuronGroup that write slots; `instead` is one whose present value, a point of the line, makes room."""
        if not slots:
            return
        outputs = np.stack([slot.function for slot in slots], axis=1)
        place = slots.index(instead) if instead is not None else None
        moved = place is not None and self._make_room(sop, outputs, place)
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
    def _make_room(sop: TabulatedSOp, outputs: Floats, place: int) -> bool:
        """Whether one neuron is to take the present value away; else it is taken off what the steps write.

        The latter is for nothing where there is a step between any two values anyway, as for a count.
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
        # The count takes the place of 1/(c+1), which nobody reads after this layer.
        columns = self.asked.get(id(sop), [])
        if columns:
            wanted = max(columns, key=lambda column: int(np.count_nonzero(column)))
            self._replace(sop, raw, wanted)

    def _make_aggregate(self, sop: TabulatedSOp) -> None:
        assert sop.value is not None
        columns = self.asked.get(id(sop), [])
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
        """A slot that attention has written gets another function of the same value: the difference is added."""
        largest = float(np.abs(raw.function).max())
        raw.what, raw.function = sop.label, _tidy(function, largest)
        self._feed(sop, self.basis(sop, sop.layer, first=raw), instead=raw)

    def _copy(self, sop: TabulatedSOp, slot: Slot) -> None:
        """Heads that read a function of the value, less that of the default; a bias adds the default again."""
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
        """The head of one term of a selector; aggregates through one selector share it."""
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
        sink = -1.0 if score.bottomless else score.top if head.counts else score.top - 0.5
        to_sink = self.read([*score.tops, *score.raised], constant=sink, at_bos=BOS_PULL)
        head.products.append((to_sink, LinearForm(at_bos=1.0)))

    # --- outputs -------------------------------------------------------------------------------------------------

    def answer(self, name: str, sop: TabulatedSOp) -> Readout:
        """The coordinates of an output."""
        points = _points(sop)
        return Readout(name, sop, [self.read([(sop, point[:, None])]) for point in points], np.stack(points, axis=1))


FAR = 1e6  # the largest square of a point, in units of the square of the gap


def _points(sop: TabulatedSOp) -> list[Floats]:
    """Where the values stand, 1 apart: numbers that are there anyway stay in place, others become whole numbers."""
    count = len(sop.values)
    mean = sop.owner is not None and sop.owner.kind == "aggregate" and not sop.owner.single
    adds = sop.owner is sop and sop.kind == "map" and sop.additive is not None
    if count > 1 and sop.numeric and (mean or adds):
        numbers = sop.numbers()
        gap = float(np.diff(np.unique(numbers)).min())
        centred = (numbers - (numbers.min() + numbers.max()) / 2) / gap
        if float(np.abs(centred).max()) ** 2 <= FAR and (not mean or _stays(sop)):
            return [centred]
    whole = np.arange(count)
    base = count if count <= 512 else int(np.ceil(count**0.5))
    digits = [whole] if base == count else [whole % base, whole // base]
    return [(digit - (digit.max() / 2)) for digit in digits]


def _stays(sop: TabulatedSOp) -> bool:
    """Whether a function of a mean is the mean, moved and scaled."""
    assert sop.owner is not None
    return sop.over_owner(sop.numbers()) in Span(np.ones(len(sop.owner.values)), sop.owner.numbers())


class Span:
    """All that is a linear combination of some columns."""

    def __init__(self, *columns: Floats) -> None:
        self.units_NV = np.empty((0, len(columns[0])))  # orthonormal
        for column in columns:
            self.add(column)

    def _rest(self, column: Floats) -> Floats | None:
        """What of a column is no such combination, of length 1; None: nothing."""
        rest = column
        for _ in range(2):  # once leaves rounding errors of the size of the column
            rest = rest - (self.units_NV @ rest) @ self.units_NV
        size = math.sqrt(rest @ rest)
        return rest / size if size > 1e-9 * math.sqrt(column @ column) else None

    def __contains__(self, column: Floats) -> bool:
        return self._rest(column) is None

    def add(self, column: Floats) -> bool:
        """Whether the column is one more."""
        rest = self._rest(column)
        if rest is not None:
            self.units_NV = np.concatenate([self.units_NV, rest[None]])
        return rest is not None


def _tidy(column: Floats, size: float = 1.0) -> Floats:
    """A column scaled by a power of two, so that whole numbers stay exact in float32; about as large as `size`."""
    largest = float(np.abs(column).max())
    if largest == 0:
        return column
    return np.asarray(column / 2.0 ** math.ceil(math.log2(largest / size)))
