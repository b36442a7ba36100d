"""What a claim is: a statement of the literature with an experiment that can refute it.

A claim names its source, its protocol and its rule, and the rule is code: a function of the measured numbers of all
seeds, written before anything was measured (`judge`). What is varied are its arms; one arm with one seed is a cell,
which is measured alone, in a process of its own, and kept.

    confirmed    every part of the statement holds, by the margin that the rule names
    refuted      a part is shown to be wrong
    not shown    neither: the seeds differ too much, or there are too few of them
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from allyouneed.lab.charts import AnyChart
from allyouneed.lab.statistics import Interval, difference, interval

Effort = Literal["quick", "full"]
Result = Literal["confirmed", "refuted", "not shown"]
Numbers = Mapping[str, float]
Side = Literal["above", "below", "unclear"]

FULL = 4  # times the steps of a quick measurement


def budget(steps: int, effort: Effort) -> int:
    """Steps of training for an effort."""
    return steps if effort == "quick" else FULL * steps


class Found:
    """What was measured: for each arm the numbers of each seed, in one order of seeds."""

    def __init__(self, numbers: Mapping[str, Sequence[Numbers]]) -> None:
        self.numbers = numbers

    def values(self, arm: str, name: str) -> list[float]:
        """One number of one arm, for each seed."""
        return [numbers[name] for numbers in self.numbers[arm]]

    def interval(self, arm: str, name: str) -> Interval:
        """Its mean, and where that may be."""
        return interval(self.values(arm, name))

    def names(self, arm: str) -> list[str]:
        """What was measured of an arm."""
        return list(self.numbers[arm][0])


@dataclass(frozen=True)
class Part:
    """One thing that a claim says, and what the rule makes of it."""

    says: str
    result: Result
    words: str  # the numbers


def outcome(parts: Sequence[Part]) -> Result:
    """Of the whole: one part that is refuted refutes it."""
    results = {part.result for part in parts}
    if "refuted" in results:
        return "refuted"
    return "confirmed" if results == {"confirmed"} else "not shown"


class Claim(ABC):
    """Every claim is a final subclass of this one; its docstring says why it is measured in this way."""

    name: ClassVar[str]  # on the command line
    says: ClassVar[str]
    source: ClassVar[str]
    protocol: ClassVar[str]
    rule: ClassVar[str]
    arms: ClassVar[Sequence[str]] = ("all",)  # what is varied
    cells_of: ClassVar[str] = ""  # another claim whose measurements this one judges; default: its own

    @abstractmethod
    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        """The numbers of one cell."""

    @abstractmethod
    def judge(self, found: Found) -> list[Part]:
        """The rule."""

    @abstractmethod
    def chart(self, found: Found) -> AnyChart:
        """The picture."""


# --- what rules are made of ------------------------------------------------------------------------------------------


def side(ours: Sequence[float], theirs: Sequence[float], margin: float = 0.0) -> Side:
    """Whether ours minus theirs is shown to be above the margin, or below it; the seeds are the same."""
    found = difference([value - margin for value in ours], theirs, paired=True)
    if not found.is_shown():
        return "unclear"
    return "above" if found.interval.mean > 0 else "below"


def more(says: str, ours: Sequence[float], theirs: Sequence[float], margin: float = 0.0, digits: int = 3) -> Part:
    """Ours is more than theirs, by more than the margin."""
    words = f"{interval(ours).text(digits)} against {interval(theirs).text(digits)}"
    return Part(says, _result(side(ours, theirs, margin)), words)


def at_least(says: str, values: Sequence[float], bar: float, digits: int = 3) -> Part:
    """The values are above a bar."""
    return Part(says, _result(side(values, [bar] * len(values))), f"{interval(values).text(digits)}; bar {bar:g}")


def at_most(says: str, values: Sequence[float], bar: float, digits: int = 3) -> Part:
    """The values are below a bar."""
    result = _result(side([bar] * len(values), values))
    return Part(says, result, f"{interval(values).text(digits)}; bar {bar:g}")


def alike(says: str, ours: Sequence[float], theirs: Sequence[float], margin: float, digits: int = 3) -> Part:
    """Neither is more than the other by more than the margin (two one-sided tests)."""
    over, under = side(ours, theirs, margin), side(theirs, ours, margin)
    between = difference(ours, theirs, paired=True).interval
    words = f"difference {between.text(digits)}; margin {margin:g}"
    if over == under == "below":
        return Part(says, "confirmed", words)
    return Part(says, "refuted" if "above" in (over, under) else "not shown", words)


def given(needed: Part, parts: Sequence[Part]) -> list[Part]:
    """All of them; but where what the experiment needs did not come about, it says nothing, for or against."""
    if needed.result == "confirmed":
        return [needed, *parts]
    silent = [Part(part.says, "not shown", part.words) for part in parts]
    return [Part(needed.says, "not shown", f"{needed.words}: so the experiment says nothing"), *silent]


def _result(where: Side) -> Result:
    results: dict[Side, Result] = {"above": "confirmed", "below": "refuted", "unclear": "not shown"}
    return results[where]


def band(found: Found, arm: str, names: Sequence[str]) -> tuple[list[float], list[float], list[float]]:
    """Means, lower and upper ends of several numbers of an arm: a curve."""
    ends = [found.interval(arm, name) for name in names]
    return [end.mean for end in ends], [end.low for end in ends], [end.high for end in ends]


def over_arms(found: Found, arms: Sequence[str], name: str) -> tuple[list[float], list[float], list[float]]:
    """The same for one number over several arms."""
    ends = [found.interval(arm, name) for arm in arms]
    return [end.mean for end in ends], [end.low for end in ends], [end.high for end in ends]
