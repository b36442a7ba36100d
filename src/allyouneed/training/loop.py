"""The training loop.

    run = Run(recipe, folder, ...)     # prepare the data, build the model, resume from the newest intact checkpoint
    while run.has_budget():
        run.step()                     # micro-batches side by side; sum, clip and check the gradient; one update
        run.evaluate_or_save_if_due()  # evaluate, keep the best, save
    run.finish()                       # write the best weights as a model folder

Everything random is addressed by (seed, step): batches, dropout masks, initial weights. So a checkpoint holds only
tensors and a few numbers (`progress.py`), and a run that is killed at any instant and started again with the same
command ends in the same bits (except with budgets in minutes).

Several processes (torchrun) run this same loop; `process_group.py` and `parallel.py` describe what differs then.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import torch

from allyouneed.config import to_toml
from allyouneed.errors import FolderError, TrainingError
from allyouneed.folder import save_outline
from allyouneed.models import Model
from allyouneed.storage import write_atomic
from allyouneed.training.budget import Spent
from allyouneed.training.checkpoint import Checkpoints
from allyouneed.training.determinism import deterministic
from allyouneed.training.extension import begin_budget, extend_budget, schedule_of
from allyouneed.training.finish import ModelWriter
from allyouneed.training.gradients import Gradients, mix_seed
from allyouneed.training.guards import MAX_SKIPS, accept_gradient, should_restart
from allyouneed.training.pace import PROBE_SHARE, TimePlan
from allyouneed.training.parallel import parallelize, require_divisible
from allyouneed.training.precision import settle_precision
from allyouneed.training.process_group import ProcessGroup, report_once
from allyouneed.training.progress import Progress, ProgressListener, SilentListener
from allyouneed.training.recipe import Recipe
from allyouneed.training.recipe_files import read_stored_recipe
from allyouneed.training.setup import (
    load_start,
    newest_checkpoint,
    open_log,
    open_run_folder,
    prepare_data,
    require_buildable,
    runs_blocks_twice,
    start_workers,
)
from allyouneed.training.shard_files import save_checkpoint
from allyouneed.training.stopping import Interrupted, stop_signals
from allyouneed.training.tensorboard import Board
from allyouneed.training.train_state import TrainState
from allyouneed.training.validation import Validator, give_up, record_scores


def train(
    recipe: Recipe,
    folder: Path,
    listener: ProgressListener | None = None,
    device: str = "cpu",
    cores: int | None = None,
    began: float | None = None,
) -> Path:
    """Train, or resume, in a run folder; return the finished model folder.

    `cores`: by default all that this process may run on. `began`: since when a budget in minutes counts (monotonic
    clock; default: now). Under torchrun every process calls this; rank 0 alone writes to folder and listener.
    """
    began = time.monotonic() if began is None else began
    with report_once():
        group = ProcessGroup(recipe.train.parallel)
        require_divisible(recipe.train, group)
        require_buildable(recipe, folder, device)
    listener = listener if listener is not None and group.is_rank0 else SilentListener()
    group.join(where := group.device(device))
    with group.explain_lost_process(), deterministic(recipe.train.deterministic), ExitStack() as held:
        if group.on_rank0(lambda: open_run_folder(held, recipe, folder, listener)):
            listener.note(f"{folder}: this run is finished; its model is in {folder / 'model'}")
        else:
            recipe = settle_precision(recipe, folder, where, group, listener)
            _train(Run(recipe, folder, listener, where, cores, group, began))
    group.leave()
    return folder / "model"


def _train(run: "Run") -> None:
    try:
        run.write_recipe()
        with stop_signals(run.stop, keep_handling=run.group.size > 1):
            run.evaluate_start()
            run.evaluate_or_save_if_due()  # an evaluation that was given up in order to stop is made now
            while run.has_budget():
                run.step()
                run.evaluate_or_save_if_due()
        run.finish()  # everything is saved by now: a signal from here on loses nothing
    finally:
        run.close()


class Run:
    """A run in progress."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        listener: ProgressListener,
        device: torch.device,
        cores: int | None = None,
        group: ProcessGroup | None = None,
        began: float | None = None,
    ) -> None:
        began = time.monotonic() if began is None else began  # first: preparation counts, too
        self.progress = Progress()
        self.recipe, self.config, self.folder, self.listener = recipe, recipe.train, folder, listener
        self.group = group = group or ProcessGroup()
        self.data = prepare_data(recipe, folder, group)
        for note in self.data.notes:
            listener.note(note)
        torch.manual_seed(recipe.seed)
        self.model: Model = recipe.model.build(self.data.sizes).to(device)
        self.checkpoints = Checkpoints(folder, report=listener.note, tidy=group.is_rank0)
        newest = newest_checkpoint(self.checkpoints, group)
        load_start(recipe, self.model, self.data.codec, group, listener, new=newest is None)
        with report_once():
            twice = runs_blocks_twice(recipe, self.model, self.data)
            parallelism = parallelize(self.model, self.config, group, device, runs_twice=twice)
            self.state = TrainState(self.model, self.config, parallelism)
        self.log = open_log(folder, group)
        self.board = Board(folder / "tensorboard", enabled=group.is_rank0)
        if newest is None:
            self.log.rewind(-1)
            begin_budget(self.progress, self.config.budget)
        else:
            group.on_every_rank(lambda: self._resume(newest))
        self.progress.spent.count_from(began)
        self.schedule = schedule_of(self.progress, self.config)
        self.plan = TimePlan(self.config, self.progress.pace) if self.config.budget.minutes is not None else None
        self.validator = Validator(recipe, self.data, parallelism, group)
        self.workers = start_workers(recipe, self.model, parallelism, group, cores, self.log, self.progress.spent.steps)
        self.gradients = Gradients(recipe, self.data, parallelism, self.workers, group)
        self._stop_requested, self._is_late, self._given_up_at = False, False, -1
        self._saved_at = time.monotonic()
        self._logged_at, self._logged_tokens = time.monotonic(), self.progress.spent.tokens
        if self.plan is not None and not self.progress.spent.steps and self.plan.is_over(self._clock()):
            listener.note(self.plan.describe_late_start(self.progress.spent.seconds))

    def write_recipe(self) -> None:
        """Write the resolved recipe. Not earlier: a failed first attempt must not block the corrected one."""

        def write() -> None:
            write_atomic(self.folder / "recipe.toml", to_toml(self.recipe).encode())
            save_outline(self.folder, self.model, self.data.codec, self.recipe)

        self.group.on_rank0(write)

    # --- steps ---

    def has_budget(self) -> bool:
        """Return True while budget and patience remain. Save and raise Interrupted if a stop was requested."""
        _, stop = self._agree()
        if stop:
            self._save_and_stop()
        if self.config.patience and self.progress.since_best >= self.config.patience:
            return False
        return self._fraction() < 1

    def _fraction(self) -> float:
        """Return the fraction of the budget at the end of the last step: of steps, tokens, FLOPs or time for steps."""
        return self.progress.spent.fraction(self.config.budget) if self.plan is None else self.progress.pace.fraction

    def step(self) -> None:
        """Make one update of the weights."""
        if should_restart(self.progress, self.config):
            self._restart()
        step = self.progress.spent.steps
        totals = self.gradients.compute(step)
        factor = self._learning_rate_factor(totals.tokens)
        norm = self.gradients.clip()
        if accept_gradient(self.progress, norm, self.config.spike):
            self.state.update(step + 1, factor, self.workers)
        else:
            self._report_skip(norm)
        self.state.end_step(step + 1)
        self.progress.spent.add_step(totals.tokens, totals.flops)
        self._record_step(totals.loss, norm, factor)

    def _learning_rate_factor(self, tokens: int) -> float:
        """Return the schedule's factor for the step in progress, which predicts `tokens`."""
        spent = self.progress.spent
        if self.plan is not None:
            return self.schedule.factor(self.plan.begin_step(spent.seconds, self.progress.evaluations))
        after = Spent(spent.steps + 1, spent.tokens + tokens, spent.seconds, spent.flops)
        return self.schedule.factor(after.fraction(self.config.budget))

    def _restart(self) -> None:
        """Start again from other random weights; what was spent stays spent.

        This happens at the start of a step, not at the end of an evaluation: a checkpoint in between holds the weights
        that were evaluated, and a run that resumes from it comes here again.
        """
        spent, loss = self.progress.spent, self.progress.held_out_loss
        torch.manual_seed(mix_seed(self.recipe.seed, spent.steps, 0))
        self.state.restart(self.recipe.model.build(self.data.sizes), self.folder)
        self.progress.losses = []
        # Logged with the number of the coming step: if that step is lost, so is this line, and both are repeated.
        self.log.append({"kind": "restart", "step": spent.steps + 1, "loss": loss})
        self.listener.note(
            f"step {spent.steps:,}: the held-out loss is {loss:.3g}, above {self.config.restart_above:g}: "
            "restarting from other weights"
        )

    def _report_skip(self, norm: float) -> None:
        """Log a gradient that was not applied; give up after too many of them."""
        step = self.progress.spent.steps + 1  # of the step in progress: if it is lost, so is this line
        self.log.append({"kind": "skip", "step": step, "norm": repr(norm)})
        self.listener.note(f"step {step:,}: a gradient of norm {norm:.3g} was not applied")
        if self.progress.skips >= MAX_SKIPS:
            self.group.fail(
                TrainingError(
                    f"step {step - 1:,}: the gradient was unusable {MAX_SKIPS} times in a row (norm {norm}); "
                    "lower train.optimizer.lr or lengthen train.schedule.warmup, and start a new run"
                )
            )

    def _record_step(self, loss: float, norm: float, factor: float) -> None:
        progress, spent = self.progress, self.progress.spent
        progress.losses.append(loss)
        if spent.steps % self.config.log_every and not (self.plan is not None and self._fraction() == 1):
            return
        now = time.monotonic()
        speed = (spent.tokens - self._logged_tokens) / max(now - self._logged_at, 1e-9)
        record = {"kind": "step", "step": spent.steps, "loss": sum(progress.losses) / len(progress.losses)}
        record |= {"lr_factor": factor, "norm": norm, "tokens": spent.tokens, "seconds": round(spent.seconds, 3)}
        record |= {"flops": spent.flops, "tokens_per_second": round(speed, 1)}
        progress.losses, self._logged_at, self._logged_tokens = [], now, spent.tokens
        self._publish(record)

    def _publish(self, record: dict[str, Any]) -> None:
        self.log.append(record)
        self.board.add(record)
        self.listener.progress(self.progress.spent.fraction(self.config.budget), record)

    # --- evaluation, checkpoints, stopping ---

    def evaluate_start(self) -> None:
        """Evaluate the weights of another run before they change: they are kept if no later ones are better."""
        if self.recipe.start is not None and self.progress.evaluated_at < 0:
            self.evaluate(stoppable=True)

    def evaluate_or_save_if_due(self) -> None:
        """Evaluate after each `evaluate_every` of the budget, which also saves; otherwise save every few minutes."""
        save, stop = self._agree()
        if self.plan is not None:
            self.plan.end_step(self.progress.spent.seconds)
            if self.plan.probe_is_due() and not stop:
                self._test_cost(self.plan)
        if self._evaluations_due() > self.progress.evaluations and self._may_evaluate():
            if stop:  # perhaps only another process knows, and rank 0, which evaluates, does not
                self._save_and_stop()
            self.evaluate(stoppable=True)
        elif save:
            self.save()

    def _evaluations_due(self) -> int:
        return int(self._fraction() / self.config.evaluate_every + 1e-9)

    def _may_evaluate(self) -> bool:
        """Return whether the time allows an evaluation that is due; report once that it does not."""
        if self.plan is None or self.plan.may_evaluate():
            return True
        if not self._is_late:
            self._is_late = True
            self.listener.note(self.plan.describe_delay(self.progress.spent.steps))
        return False

    def _test_cost(self, plan: TimePlan) -> None:
        """Measure a few items, to know how long an evaluation and the final measurement will take."""
        before = self._clock()
        with self.state.averaged(), self.workers.at_rest():
            found = self.validator.predict(lambda: self._stop_requested, PROBE_SHARE * plan.allowance)
        if found is not None:
            plan.learn_cost(*found, self._clock() - before, self.progress.evaluations)

    def evaluate(self, *, stoppable: bool = False) -> None:
        """Score the (averaged) weights on the validation split; save a checkpoint, marked if it is the best so far.

        `stoppable`: a request to stop ends the evaluation between two batches; it is repeated when the run resumes.
        """
        before = self._clock()
        with self.state.averaged(), self.workers.at_rest():
            found = self.validator.evaluate(
                lambda: stoppable and self._stop_requested, self.plan, before, self.progress.evaluations
            )
        if found is None:
            self._save_and_stop()
        self.progress.evaluations = self._evaluations_due()
        if self.plan is not None:
            first = self.plan.learn_evaluation(found.items, self._clock() - before)
            if first and found.items < found.of:
                self.listener.note(self.plan.describe_part(found.items, found.of))
            if not found.scores:
                self.listener.note(give_up(self.progress, self.plan))
                self._given_up_at = self.progress.spent.steps
                self.save()
                return
        with report_once():
            is_best = record_scores(self.progress, found.scores, self.config.metric)
        spent = self.progress.spent
        spent.tick()
        record = {"kind": "evaluation", "step": spent.steps, "tokens": spent.tokens, "best": is_best}
        record |= {"seconds": round(spent.seconds, 3), "flops": spent.flops}
        self._publish(record | {score.name: score.value for score in found.scores})
        self.save()

    def save(self) -> None:
        """Save a checkpoint, marked if the evaluation of this step was the best so far."""
        began = time.monotonic()
        self.progress.spent.tick()
        step, sharded = self.progress.spent.steps, self.state.parallelism.sharded
        state, best = self.progress.as_dict(), self.progress.best_step == step
        save_checkpoint(self.checkpoints, self.group, step, self.state.tensors(), state, best, sharded=sharded)
        if self.plan is not None:
            found = (time.monotonic() - began, self.plan.slowdown())
            self.plan.learn_saving(*map(self.group.from_rank0, found))
        self._saved_at = time.monotonic()

    def _resume(self, path: Path) -> None:
        """Continue from a checkpoint."""
        try:
            checkpoint = self.checkpoints.load(path)
            self.state.load_tensors(checkpoint.tensors, path)
            self.progress = Progress.from_dict(checkpoint.state)
            if "pace" not in checkpoint.state:  # of an earlier version
                self.progress.pace.fraction = min(1.0, self.progress.spent.fraction(self.config.budget))
        except (FolderError, LookupError, TypeError, ValueError, AttributeError) as error:  # intact, of another run
            reason = str(error) if isinstance(error, FolderError) else f"{type(error).__name__}: {error}"
            raise FolderError(
                f"{path}: is not a checkpoint of this recipe: {reason.removeprefix(f'{path}: ')}"
            ) from None
        if not self.progress.budget:  # of an earlier version
            begin_budget(self.progress, read_stored_recipe(self.folder / "recipe.toml").train.budget)
        extension = extend_budget(self.progress, self.recipe, self.folder)
        self.log.rewind(self.progress.spent.steps)
        longer = "" if extension is None else f" with a larger budget: {self.config.budget}"
        self.listener.note(f"resuming from step {self.progress.spent.steps:,}{longer}")
        if extension is not None:
            self.log.append(extension)

    def stop(self) -> None:
        """Request to save and stop after the present step."""
        self._stop_requested = True

    def _agree(self) -> tuple[bool, bool]:
        """Return whether it is time to save and whether to stop, the same for all processes, by one clock.

        The agreed stop is not stored in `_stop_requested`: a signal may arrive during the call, and counts next time.
        """
        save = time.monotonic() - self._saved_at > 60 * self.config.save_minutes
        spent = self.progress.spent
        spent.tick()
        spent.seconds, save, stop = self.group.agree(spent.seconds, save, self._stop_requested)
        return save, stop

    def _clock(self) -> float:
        """Return the seconds spent so far, the same for all processes."""
        self._agree()
        return self.progress.spent.seconds

    def _save_and_stop(self) -> NoReturn:
        self.save()
        steps = f"{self.progress.spent.steps:,}"
        self.group.fail(Interrupted(f"stopped and saved at step {steps}; the same command resumes from there"))

    # --- the end ---

    def finish(self) -> Path:
        """Write the best weights, scored with the recipe's own search, as a model folder."""
        if self.progress.spent.steps not in (self.progress.evaluated_at, self._given_up_at):
            self.evaluate()
        self.workers.close()  # decoding may use all cores again
        model = self.state.parallelism.gather()
        parts = (self.data, self.checkpoints, self.progress, self.plan, self.log, self.listener)
        writer = ModelWriter(self.recipe, self.folder, *parts)

        def write() -> None:
            assert model is not None, "rank 0 has it"
            writer.write(model)

        self.group.on_rank0(write)
        return self.folder / "model"

    def close(self) -> None:
        """End the threads and close the log."""
        self.workers.close()
        self.board.close()
        self.log.close()
