"""The contract of a claim: a statement of the literature with an experiment that can refute it.

A claim has a source, a protocol and a rule. The rule is code: a function of the numbers of all seeds (`judge`). Changes
of protocol or rule after results were known are listed in `changed`. The variants of an experiment are its arms; one
arm with one seed is a cell. Cells are measured independently, in worker processes, and stored.

    confirmed    every part of the statement holds, by the margin of the rule
    refuted      a part is shown to be wrong, after a correction for the number of parts (Holm)
    not shown    neither: the seeds differ too much or are too few, or the experiment did not work
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from allyouneed.lab.charts import AnyChart
from allyouneed.lab.statistics import Interval, difference, holm, interval

Effort = Literal["quick", "full"]
Result = Literal["confirmed", "refuted", "not shown"]
Numbers = Mapping[str, float]
Side = Literal["above", "below", "unclear"]

FULL = 4  # steps of a full measurement relative to a quick one


def budget(steps: int, effort: Effort) -> int:
    """Return the number of training steps for an effort."""
    return steps if effort == "quick" else FULL * steps


class Measurements:
    """The numbers of every arm and seed, with seeds in the same order in all arms."""

    def __init__(self, numbers: Mapping[str, Sequence[Numbers]]) -> None:
        self.numbers = numbers

    def values(self, arm: str, name: str) -> list[float]:
        """Return one number of one arm, for each seed."""
        return [numbers[name] for numbers in self.numbers[arm]]

    def interval(self, arm: str, name: str) -> Interval:
        """Return the mean of that number over seeds, with its interval."""
        return interval(self.values(arm, name))

    def names(self, arm: str) -> list[str]:
        """Return the names of the numbers of an arm."""
        return list(self.numbers[arm][0])


@dataclass(frozen=True)
class ClaimPart:
    """One part of a claim, with its result."""

    statement: str
    result: Result
    evidence: str  # the numbers
    p: float = 0.0  # p-value of the test; 0 for exact counts
    judged: bool = True  # False for preconditions of the experiment, and for what follows from definitions


def corrected(parts: Sequence[ClaimPart]) -> list[ClaimPart]:
    """Change refuted parts to "not shown" if they do not pass the correction for multiple tests (Holm 1979).

    One refuted part refutes a claim, so every part is a chance to refute it by accident. Confirmation needs no
    correction, since all parts have to hold.
    """
    chances = {
        str(place): part.p if part.result == "refuted" else 1.0 for place, part in enumerate(parts) if part.judged
    }
    holds = holm(chances)
    return [
        replace(
            part,
            result="not shown",
            evidence=f"{part.evidence}; wrong, but not significantly among {len(chances)} parts",
        )
        if part.judged and part.result == "refuted" and not holds[str(place)]
        else part
        for place, part in enumerate(parts)
    ]


def outcome(parts: Sequence[ClaimPart]) -> Result:
    """Return the result of the whole claim: one refuted part refutes it."""
    results = {part.result for part in parts if part.judged}
    if "refuted" in results:
        return "refuted"
    return "confirmed" if results == {"confirmed"} else "not shown"


class Claim(ABC):
    """Base class of all claims. Each is a final subclass whose docstring explains the design of the experiment."""

    name: ClassVar[str]  # on the command line
    statement: ClassVar[str]
    source: ClassVar[str]
    protocol: ClassVar[str]
    rule: ClassVar[str]
    changed: ClassVar[str] = ""  # changes of protocol or rule after results were known, and why
    arms: ClassVar[Sequence[str]] = ("all",)  # the variants of the experiment
    cells_of: ClassVar[str] = ""  # another claim whose measurements are used; default: its own

    @abstractmethod
    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        """Measure one cell."""

    @abstractmethod
    def judge(self, found: Measurements) -> list[ClaimPart]:
        """Apply the rule to each part on its own."""

    def parts(self, found: Measurements) -> list[ClaimPart]:
        """Apply the rule, corrected for the number of parts."""
        return corrected(self.judge(found))

    @abstractmethod
    def chart(self, found: Measurements) -> AnyChart:
        """Draw the measurements."""


# --- building blocks of rules ----------------------------------------------------------------------------------------


def side(ours: Sequence[float], theirs: Sequence[float], margin: float = 0.0) -> tuple[Side, float]:
    """Return whether ours minus theirs is shown to be above or below the margin, paired by seed, and its p-value."""
    found = difference([value - margin for value in ours], theirs, paired=True)
    if not found.is_shown():
        return "unclear", found.p
    return "above" if found.interval.mean > 0 else "below", found.p


def greater(
    statement: str, ours: Sequence[float], theirs: Sequence[float], margin: float = 0.0, digits: int = 3
) -> ClaimPart:
    """Test that ours is greater than theirs by more than the margin."""
    evidence = f"{interval(ours).text(digits)} against {interval(theirs).text(digits)}"
    evidence += f"; margin {margin:g}" if margin else ""
    return _part(statement, side(ours, theirs, margin), evidence)


def at_least(statement: str, values: Sequence[float], bar: float, digits: int = 3) -> ClaimPart:
    """Test that the values are above a threshold."""
    return _part(statement, side(values, [bar] * len(values)), f"{interval(values).text(digits)}; bar {bar:g}")


def at_most(statement: str, values: Sequence[float], bar: float, digits: int = 3) -> ClaimPart:
    """Test that the values are below a threshold."""
    return _part(statement, side([bar] * len(values), values), f"{interval(values).text(digits)}; bar {bar:g}")


def equivalent(
    statement: str, ours: Sequence[float], theirs: Sequence[float], margin: float, digits: int = 3
) -> ClaimPart:
    """Test that ours and theirs differ by less than the margin (two one-sided tests, at 2.5 % each)."""
    (over, p_over), (under, p_under) = side(ours, theirs, margin), side(theirs, ours, margin)
    between = difference(ours, theirs, paired=True).interval
    evidence = f"difference {between.text(digits)}; margin {margin:g}"
    if over == under == "below":
        return ClaimPart(statement, "confirmed", evidence, max(p_over, p_under))
    result: Result = "refuted" if "above" in (over, under) else "not shown"
    return ClaimPart(statement, result, evidence, min(p_over, p_under))


def provided(needed: Sequence[ClaimPart], parts: Sequence[ClaimPart]) -> list[ClaimPart]:
    """Return all parts; if a precondition in `needed` failed, the parts are not shown."""
    if all(part.result == "confirmed" for part in needed):
        return [*(replace(part, judged=False) for part in needed), *parts]
    met = [
        replace(part, judged=False)
        if part.result == "confirmed"
        else ClaimPart(part.statement, "not shown", f"{part.evidence}: the experiment is inconclusive", judged=False)
        for part in needed
    ]
    return [*met, *(replace(part, result="not shown") for part in parts)]


def by_definition(part: ClaimPart) -> ClaimPart:
    """Mark a part that follows from formulas: no measurement could contradict it, so it is not judged."""
    return replace(part, statement=f"{part.statement} (follows from the formulas, not judged)", judged=False)


def _part(statement: str, where: tuple[Side, float], evidence: str) -> ClaimPart:
    results: dict[Side, Result] = {"above": "confirmed", "below": "refuted", "unclear": "not shown"}
    return ClaimPart(statement, results[where[0]], evidence, where[1])


def band(found: Measurements, numbers: Iterable[tuple[str, str]]) -> tuple[list[float], list[float], list[float]]:
    """Return the means, lower and upper ends of several (arm, name) pairs, as the points of a curve."""
    ends = [found.interval(arm, name) for arm, name in numbers]
    return [end.mean for end in ends], [end.low for end in ends], [end.high for end in ends]
