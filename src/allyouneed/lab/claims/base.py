"""What a claim is: a statement of the literature with an experiment that can refute it.

A claim names its source, its protocol and its rule, and the rule is code: a function of the measured numbers of all
seeds (`judge`). Whatever of both was changed after numbers had been seen is told in `changed`. What is varied are its
arms; one arm with one seed is a cell, which is measured alone, in a process of its own, and kept.

    confirmed    every part of the statement holds, by the margin that the rule names
    refuted      a part is shown to be wrong, even if it is counted that so many parts could have been (Holm)
    not shown    neither: the seeds differ too much, or there are too few of them, or the experiment did not work
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
    p: float = 0.0  # how probable such numbers are if the part is neither right nor wrong; 0: they are exact
    judged: bool = True  # False: what the experiment needs, or what follows from definitions


def corrected(parts: Sequence[Part]) -> list[Part]:
    """What is refuted only because so many parts were looked at is not shown (Holm 1979).

    One refuted part refutes a claim, so every part is a chance to refute it by accident. Nothing of the kind is needed
    for confirming, where all of them have to hold.
    """
    chances = {
        str(place): part.p if part.result == "refuted" else 1.0 for place, part in enumerate(parts) if part.judged
    }
    holds = holm(chances)
    return [
        replace(part, result="not shown", words=f"{part.words}; wrong, but not surely so among {len(chances)} parts")
        if part.judged and part.result == "refuted" and not holds[str(place)]
        else part
        for place, part in enumerate(parts)
    ]


def outcome(parts: Sequence[Part]) -> Result:
    """Of the whole: one part that is refuted refutes it."""
    results = {part.result for part in parts if part.judged}
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
    changed: ClassVar[str] = ""  # what of protocol and rule was changed after numbers had been seen, and why
    arms: ClassVar[Sequence[str]] = ("all",)  # what is varied
    cells_of: ClassVar[str] = ""  # another claim whose measurements this one judges; default: its own

    @abstractmethod
    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        """The numbers of one cell."""

    @abstractmethod
    def judge(self, found: Found) -> list[Part]:
        """The rule, for each part alone."""

    def parts(self, found: Found) -> list[Part]:
        """What the rule makes of the numbers, several parts being looked at."""
        return corrected(self.judge(found))

    @abstractmethod
    def chart(self, found: Found) -> AnyChart:
        """The picture."""


# --- what rules are made of ------------------------------------------------------------------------------------------


def side(ours: Sequence[float], theirs: Sequence[float], margin: float = 0.0) -> tuple[Side, float]:
    """Whether ours minus theirs is shown to be above the margin, or below it, and the p of that; the seeds are the
    same."""
    found = difference([value - margin for value in ours], theirs, paired=True)
    if not found.is_shown():
        return "unclear", found.p
    return "above" if found.interval.mean > 0 else "below", found.p


def more(says: str, ours: Sequence[float], theirs: Sequence[float], margin: float = 0.0, digits: int = 3) -> Part:
    """Ours is more than theirs, by more than the margin."""
    words = f"{interval(ours).text(digits)} against {interval(theirs).text(digits)}"
    words += f"; margin {margin:g}" if margin else ""
    return _part(says, side(ours, theirs, margin), words)


def at_least(says: str, values: Sequence[float], bar: float, digits: int = 3) -> Part:
    """The values are above a bar."""
    return _part(says, side(values, [bar] * len(values)), f"{interval(values).text(digits)}; bar {bar:g}")


def at_most(says: str, values: Sequence[float], bar: float, digits: int = 3) -> Part:
    """The values are below a bar."""
    return _part(says, side([bar] * len(values), values), f"{interval(values).text(digits)}; bar {bar:g}")


def alike(says: str, ours: Sequence[float], theirs: Sequence[float], margin: float, digits: int = 3) -> Part:
    """Neither is more than the other by more than the margin (two one-sided tests, at 2.5 % each)."""
    (over, p_over), (under, p_under) = side(ours, theirs, margin), side(theirs, ours, margin)
    between = difference(ours, theirs, paired=True).interval
    words = f"difference {between.text(digits)}; margin {margin:g}"
    if over == under == "below":
        return Part(says, "confirmed", words, max(p_over, p_under))
    return Part(says, "refuted" if "above" in (over, under) else "not shown", words, min(p_over, p_under))


def given(needed: Sequence[Part], parts: Sequence[Part]) -> list[Part]:
    """All of them; but where what the experiment needs did not come about, it says nothing, for or against."""
    if all(part.result == "confirmed" for part in needed):
        return [*(replace(part, judged=False) for part in needed), *parts]
    met = [
        replace(part, judged=False)
        if part.result == "confirmed"
        else Part(part.says, "not shown", f"{part.words}: so the experiment says nothing", judged=False)
        for part in needed
    ]
    return [*met, *(replace(part, result="not shown") for part in parts)]


def by_definition(part: Part) -> Part:
    """A part that follows from formulas: no measurement could have come out otherwise, so that it decides nothing."""
    return replace(part, says=f"{part.says} (follows from the formulas, not judged)", judged=False)


def _part(says: str, where: tuple[Side, float], words: str) -> Part:
    results: dict[Side, Result] = {"above": "confirmed", "below": "refuted", "unclear": "not shown"}
    return Part(says, results[where[0]], words, where[1])


def band(found: Found, numbers: Iterable[tuple[str, str]]) -> tuple[list[float], list[float], list[float]]:
    """Means, lower and upper ends of several numbers, each by its arm and name: a curve."""
    ends = [found.interval(arm, name) for arm, name in numbers]
    return [end.mean for end in ends], [end.low for end in ends], [end.high for end in ends]
