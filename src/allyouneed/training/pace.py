"""The plan of a run whose budget is in minutes: everything up to the finished model fits into them.

    minutes = preparation + steps + evaluations + final measurement + files

Evaluations, the final measurement and the tests of what they cost get `train.evaluation_share` of the minutes, of which
at most half is kept for the final measurement. If this is too little, evaluations use a part of the held-out items,
always the same one, or are made less often; the final measurement stops when its time is over. Either is reported.

The schedule of the learning rate follows the fraction f of the time for steps. It is not read from the clock: before
each step, f grows by (1 - f) / n, where n is the number of steps that fit into the time that remains. So f is 1 at the
last step, whatever the evaluations took, and a run ends when f is 1.

All seconds here are those of rank 0's clock, so that all processes come to the same decisions.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from allyouneed.training.evaluate import Measurement, OutOfTime
from allyouneed.training.recipe import TrainConfig

PROBES = (0.02, 0.3, 0.9)  # fractions at which the cost of evaluations is tested on a few items
PROBE_SHARE = 0.03  # of the time for evaluations: for each of the two measurements of such a test
PROBE_TOKENS = 10  # decoded for each item of such a test
FIRST_ITEMS = 8  # the smallest part that is measured
LEAST_ITEMS = 100  # of an evaluation, if its time allows: fewer say little about which weights are best
LEAST_FINAL_ITEMS = 32  # of the final measurement, even if the time is over
LEAST_SHARE = 0.01  # of the minutes: no evaluation is given up before, since a busy machine may pause for as long
CLOSING_SECONDS = 1.0  # of an idle core, for what follows the final measurement, besides writing the model
CLOSING_SHARE = 0.05  # of the minutes: the most that is kept for this on a busy machine
RECENT = 0.05  # weight of the last step in the mean time of a step


@dataclass
class Pace:
    """What a run has learnt about its time. A checkpoint stores these fields."""

    fraction: float = 0.0  # of the schedule, at the last step
    evaluating: float = 0.0  # seconds spent on evaluations and on testing their cost
    items: int = 0  # held-out items in each evaluation; 0: not chosen yet
    evaluation: float = 0.0  # seconds of an evaluation; 0: unknown
    final: float = 0.0  # seconds of the final measurement of all items; 0: unknown
    saving: float = 0.0  # seconds to save a checkpoint
    slowdown: float = 1.0  # seconds of the clock for a second of the processor: above 1 on a busy machine
    probes: int = 0  # tests of the cost so far

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "Pace":
        """Read what `dataclasses.asdict` wrote."""
        return cls(**{name: state[name] + 0 for name in asdict(cls())})  # + 0: a number


class TimePlan:
    """Divides the minutes of a run between steps and evaluations."""

    def __init__(self, config: TrainConfig, pace: Pace) -> None:
        assert config.budget.minutes is not None
        self.pace, self.config = pace, config
        self.total = 60 * config.budget.minutes
        self.allowance = config.evaluation_share * self.total
        self.step_seconds: float | None = None  # None: no step was timed yet
        self._since = time.monotonic(), time.process_time()
        self._timed = 0
        self._began: float | None = None

    # --- steps ---

    def begin_step(self, seconds: float, evaluations: int) -> float:
        """Return the fraction of the schedule for the step that begins now."""
        self.end_step(seconds)
        self._began = seconds
        left = self.total - seconds - self.reserve(evaluations)
        if left <= 0:
            self.pace.fraction = 1.0
        elif self.step_seconds is not None:
            steps = max(1, round(left / max(self.step_seconds, 1e-9)))
            self.pace.fraction = 1.0 if steps == 1 else self.pace.fraction + (1 - self.pace.fraction) / steps
        return self.pace.fraction

    def is_over(self, seconds: float) -> bool:
        """Return whether no time for steps is left."""
        return self.total - seconds <= self.reserve(0)

    def end_step(self, seconds: float) -> None:
        """Learn the time of the step that has ended."""
        if self._began is None:
            return
        self._timed += 1
        mean, taken = self.step_seconds or 0.0, seconds - self._began
        self.step_seconds = mean + (taken - mean) * max(RECENT, 1 / self._timed)
        self._began = None

    def reserve(self, evaluations: int) -> float:
        """Return the seconds to keep for evaluations, the final measurement and files."""
        pace, left = self.pace, max(0.0, self.allowance - self.pace.evaluating)
        files = 2 * pace.saving + self._closing
        if not pace.evaluation:
            return left + files
        final = self._final()
        return final + min(self._left(evaluations) * pace.evaluation, max(left - final, pace.evaluation)) + files

    def _left(self, evaluations: int) -> int:
        """Return the number of evaluations to come, if `evaluations` have been due so far; the last is at the end."""
        return max(1, math.ceil(1 / self.config.evaluate_every - 1e-9) - evaluations)

    @property
    def _closing(self) -> float:
        return min(CLOSING_SECONDS * self.pace.slowdown, CLOSING_SHARE * self.total)

    def _final(self) -> float:
        most = self.allowance / 2
        return min(self.pace.final, most) if self.pace.final else most

    # --- evaluations ---

    def probe_is_due(self) -> bool:
        """Return whether to test the cost of evaluations now."""
        return self.pace.probes < len(PROBES) and PROBES[self.pace.probes] <= self.pace.fraction < 1

    def may_evaluate(self) -> bool:
        """Return whether an evaluation that is due fits into the share that evaluations may have up to now."""
        pace = self.pace
        if pace.fraction >= 1 or not pace.items:
            return True
        most = self.allowance - self._final()
        leaves_the_last = pace.evaluating + 2 * pace.evaluation <= most
        return leaves_the_last and pace.evaluating + pace.evaluation <= most * pace.fraction

    def evaluation_seconds(self, evaluations: int) -> tuple[float, float]:
        """Return the seconds for the next evaluation if all get the same time, and the most that it may take."""
        probes = 2 * PROBE_SHARE * self.allowance * (len(PROBES) - self.pace.probes)
        left = max(0.0, self.allowance - self.pace.evaluating - self._final() - probes)
        return left / self._left(evaluations), left / 2

    def longest_evaluation(self, seconds: float) -> float:
        """Return the seconds after which an evaluation is given up: the machine may be slower than before.

        The last one may take the time of the final measurement, which then uses fewer items, and half of the time for
        evaluations even after the minutes: the last weights are often the best.
        """
        pace = self.pace
        if pace.fraction >= 1:
            left = max(self.total - seconds - pace.saving - self._closing, self.allowance / 2)
        else:
            left = max((self.allowance - pace.evaluating - self._final()) / 2, LEAST_SHARE * self.total)
        return max(3 * pace.evaluation, left)

    def final_seconds(self, seconds: float) -> float:
        """Return the seconds that are left for the final measurement: of the minutes, and of the evaluations' share."""
        share = max(self.allowance / 2, self.allowance - self.pace.evaluating)
        return min(share, self.total - seconds - self.pace.saving - self._closing)

    def learn_cost(self, evaluation: float, final: float, taken: float, evaluations: int) -> None:
        """Learn the predicted seconds of a whole evaluation and of the final measurement; `taken`: by this test."""
        pace = self.pace
        pace.evaluating += taken
        pace.final = final
        pace.probes += sum(place <= pace.fraction for place in PROBES[pace.probes :])
        if not pace.items:
            pace.evaluation = max(1e-6, min(evaluation, self.evaluation_seconds(evaluations)[0]))

    def slowdown(self) -> float:
        """Return the seconds of the clock for a second of the processor, in this process."""
        clock, work = self._since
        return (time.monotonic() - clock) / max(time.process_time() - work, 1e-3)

    def learn_saving(self, taken: float, slowdown: float) -> None:
        """Learn the seconds of a checkpoint, and how busy the machine is."""
        self.pace.saving, self.pace.slowdown = taken, max(1.0, slowdown)

    def learn_evaluation(self, items: int, taken: float) -> bool:
        """Learn the seconds of an evaluation; return whether it has chosen `items`. 0 items: it was given up."""
        pace, first = self.pace, not self.pace.items
        pace.items, pace.evaluation = items or pace.items, taken
        pace.evaluating += taken
        return first and items > 0

    def account(self, step: int, seconds: float, final: float) -> dict[str, Any]:
        """Return a record of how the minutes were spent; `final`: seconds of the final measurement."""
        evaluating = round(self.pace.evaluating + final, 3)
        shares = {"seconds_evaluating": evaluating, "seconds_final": round(final, 3), "seconds_given": self.total}
        return {"kind": "time", "step": step, "seconds": round(seconds, 3), **shares, "fraction": self.pace.fraction}

    # --- what the user reads ---

    def describe_late_start(self, seconds: float) -> str:
        """Describe that the preparation left no time for steps."""
        return f"the preparation took {seconds:.0f} s of {self.total:.0f} s: one step is made; give it more minutes"

    def describe_part(self, items: int, of: int) -> str:
        """Describe that evaluations use a part of the held-out items."""
        return f"evaluating on {items:,} of {of:,} held-out items, {self._limit()}"

    def describe_delay(self, steps: int) -> str:
        """Describe that evaluations are made less often; `steps`: made so far."""
        pace = self.pace
        left = max(self.allowance - pace.evaluating - self._final(), pace.evaluation)
        steps_left = steps * (1 - pace.fraction) / max(pace.fraction, 1e-9)
        between = max(1, round(steps_left / max(1, int(left / max(pace.evaluation, 1e-9)))))
        every = f"train.evaluate_every={self.config.evaluate_every:g}"
        if between <= self.config.evaluate_every * (steps + steps_left):
            return f"step {steps:,}: evaluating later than {every}, {self._limit()}"
        return f"evaluating about every {between:,} steps, less often than {every}, {self._limit()}"

    def describe_given_up(self, step: int) -> str:
        """Describe an evaluation that took too long."""
        chosen = "; the weights of this last step are chosen, unmeasured" if self.pace.fraction >= 1 else ""
        return f"step {step:,}: the evaluation took too long and was given up, {self._limit()}{chosen}"

    def _limit(self) -> str:
        return f"so that it takes at most {self.config.evaluation_share:.0%} of the time (train.evaluation_share)"


def measure_within(measurement: Measurement, seconds: float, most: float = 0.0, least: int = FIRST_ITEMS) -> None:
    """Measure as many items as fit into these seconds; up to `least` items may take `most` seconds.

    The first items show how long one takes. As long as not all fit, each further part takes half of what is left. A
    part that takes longer than all of it is given up.
    """
    began = time.monotonic()
    measurement.extend(FIRST_ITEMS)
    while not measurement.whole:
        taken, done = time.monotonic() - began, measurement.items
        limit = seconds if done >= least else max(seconds, most)
        fits = int(done * (limit - taken) / max(taken, 1e-9))
        if fits < max(1, done // 4):  # hardly more than what is done
            return
        measurement.deadline = began + limit
        try:
            measurement.extend(None if fits >= measurement.size - done else done + max(1, fits // 2))
        except OutOfTime:
            return


def predict_seconds(measurement: Measurement, enough: float) -> float:
    """Return the seconds that measuring all items would take; stop measuring after `enough` seconds.

    The search of the measurement decodes at most `PROBE_TOKENS` of each item.
    """
    began = time.monotonic()
    measurement.extend(FIRST_ITEMS)
    taken = time.monotonic() - began
    measurement.deadline = began + max(enough, taken)
    while not measurement.whole and taken < enough / 2:
        try:
            measurement.extend(2 * measurement.items)
        except OutOfTime:
            break
        taken = time.monotonic() - began
    longer = max(1.0, measurement.target_length / PROBE_TOKENS) if measurement.decodes else 1.0
    return longer * taken * measurement.size / max(1, measurement.items)
