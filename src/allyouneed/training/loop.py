"""The training loop, to be read in one sitting.

    run = Run(recipe, folder)          # prepares the data, builds the model, resumes from the newest good checkpoint
    while run.has_budget():
        run.step()                     # micro-batches side by side, gradients added, clipped, guarded; one update
        run.look_up_if_due()           # log, evaluate, keep the best, save
    run.finish()                       # the best weights become a model folder

Everything random is addressed by (seed, step): the batches, the dropped elements, the initial weights. So nothing but
tensors and a few numbers has to be kept, and a run killed at any instant and started again with the same command ends
in the same bits (budgets in minutes aside).

Several processes (torchrun) run this same loop. `team.py` says who does what and what they agree upon, `parallel.py`
where the weights are: a process takes its share of the micro-batches of a step, and gradients meet in `add_gradients`.
"""

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from allyouneed.config import to_toml
from allyouneed.decode import SearchConfig
from allyouneed.errors import ConfigError, FolderError, TrainingError, UserError
from allyouneed.folder import SizeGuard, fill_model, model_tensors, save_folder
from allyouneed.malloc import keep_freed_memory
from allyouneed.mixers import Mixer
from allyouneed.models import Model
from allyouneed.sizes import Sizes
from allyouneed.storage import lock, refuse_links, verify, write_atomic
from allyouneed.tasks import Score
from allyouneed.tasks.loss import losses
from allyouneed.training.average import Average
from allyouneed.training.budget import Spent
from allyouneed.training.card import model_card
from allyouneed.training.checkpoint import Checkpoints
from allyouneed.training.determinism import conditions, determinism_lines, deterministic, require_same_conditions
from allyouneed.training.evaluate import evaluate, find_score, to_device
from allyouneed.training.log import Log, NoLog, read_log
from allyouneed.training.parallel import place, require_dealt
from allyouneed.training.process_group import ProcessGroup, said_once
from allyouneed.training.recipe import Recipe, require_same_recipe
from allyouneed.training.shard_files import save_shards
from allyouneed.training.start import described
from allyouneed.training.stopping import stop_signals
from allyouneed.training.tensorboard import Board
from allyouneed.training.workers import Workers, shares

RESTARTS_UNTIL = 0.5  # of the budget: what begins later has too little time
OWN = ("checkpoints", "data", "lock", "log.jsonl", "model", "recipe.toml", "tensorboard")  # in a run folder
MOST_TENSORS, MOST_NUMBERS = 1 << 15, 1 << 44  # of a model: beyond that a recipe is a mistake, or hostile
MOST_SKIPS = 25  # steps in a row whose gradient was no number before a run gives up


class Interrupted(UserError):
    """The run was asked to stop, and saved itself."""

    status = 130


class _Abandoned(Exception):
    """An evaluation was given up because the run was asked to stop: it is made again when the run goes on."""


class Watcher(Protocol):
    """Whoever watches a run: a progress bar, a test, nobody."""

    def note(self, line: str) -> None: ...
    def progress(self, fraction: float, record: dict[str, Any]) -> None: ...


class Silent:
    """Watches nothing."""

    def note(self, line: str) -> None: ...
    def progress(self, fraction: float, record: dict[str, Any]) -> None: ...


def train(
    recipe: Recipe, folder: Path, watcher: Watcher | None = None, device: str = "cpu", cores: int | None = None
) -> Path:
    """Trains, or goes on training, in a run folder; returns the finished model folder.

    `cores`: how many to use; otherwise all that this process may run on. Under torchrun every process calls this, and
    the first one writes to the folder and to the watcher.
    """
    with said_once():
        team = ProcessGroup(recipe.train.parallel)
        require_dealt(recipe.train, team)
        _require_buildable(recipe)
    watcher = watcher if watcher is not None and team.is_first else Silent()
    team.join(where := team.device(device))
    with team.listening(), deterministic(recipe.train.deterministic), ExitStack() as held:
        if team.first(lambda: _enter(held, recipe, folder, watcher)):
            watcher.note(f"{folder}: this run is finished; its model is in {folder / 'model'}")
        else:
            _go(recipe, folder, watcher, where, cores, team)
    team.leave()
    return folder / "model"


def _enter(held: ExitStack, recipe: Recipe, folder: Path, watcher: Watcher) -> bool:
    """Locks the run folder, refuses another recipe's; whether the run is finished."""
    folder.mkdir(parents=True, exist_ok=True)
    refuse_links(folder, OWN)
    held.enter_context(lock(folder))
    require_same_recipe(folder, recipe)
    return _is_finished(folder, watcher)


def _go(
    recipe: Recipe, folder: Path, watcher: Watcher, device: torch.device, cores: int | None, team: ProcessGroup
) -> None:
    run = Run(recipe, folder, watcher, device, cores, team)
    # Only now: a first attempt that failed above must not keep the corrected one out of the folder.
    team.first(lambda: write_atomic(folder / "recipe.toml", to_toml(recipe).encode()))
    try:
        with stop_signals(run.stop, patient=team.size > 1):
            run.look_at_start()
            run.look_up_if_due()  # an evaluation that was given up to stop in time is made now
            while run.has_budget():
                run.step()
                run.look_up_if_due()
        run.finish()  # all is saved by now: whoever stops this loses nothing
    finally:
        run.close()


class Run:
    """A run in progress."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        watcher: Watcher,
        device: torch.device,
        cores: int | None = None,
        team: ProcessGroup | None = None,
    ) -> None:
        self.spent = Spent()
        self.team = team = team or ProcessGroup()
        self.cores = cores or team.cores
        self.recipe, self.folder, self.watcher, self.device = recipe, folder, watcher, device
        self.config = recipe.train
        self.data = team.in_turn(lambda: recipe.task.prepare(folder / "data", recipe.seed))
        two_texts = self.data.codec.source is not None and self.data.codec.target is not None
        if recipe.model.kind == "decoder" and two_texts and not self.data.sizes.shared:
            team.end(
                ConfigError("a decoder reads source and target as one text: it needs one vocabulary, task.shared=true")
            )
        for note in self.data.notes:
            watcher.note(note)
        torch.manual_seed(recipe.seed)
        self.model: Model = recipe.model.build(self.data.sizes).to(device)
        self.checkpoints = Checkpoints(folder, report=watcher.note, tidy=team.is_first)
        latest = team.first(lambda: _name(self.checkpoints.latest()))
        if (start := recipe.start) is not None and latest is None:
            team.each(lambda: start.fill(self.model, self.data.codec))
            watcher.note(f"beginning with {described(recipe.start)}")
        with said_once():
            self.placement = place(self.model, self.config, team, device, twice=self._reads_twice())
        self.optimizers = self.config.optimizer.build(self.placement, self.placement.gather_matrix)
        self.average = Average(self.config.average, self.placement)
        self.log = Log(folder / "log.jsonl") if team.is_first else NoLog()
        self.board = Board(folder / "tensorboard", wanted=team.is_first)
        self.evaluations = 0
        self.evaluated_at = -1
        self.held_out_loss = 0.0  # then
        self.since_best = 0
        self.best: float | None = None
        self.best_loss: float | None = None
        self.best_step = -1
        self.usual_norm = 0.0  # a running mean, for the spike guard
        self.skips = 0
        self._asked_to_stop = False
        self._losses: list[float] = []
        if latest is not None:
            team.each(lambda: self._resume(self.checkpoints.folder / latest))
        else:
            self.log.rewind(-1)
        self.workers = self._hire()
        self._saved_at = time.monotonic()
        self._logged_at, self._logged_tokens = time.monotonic(), self.spent.tokens

    def _reads_twice(self) -> bool:
        """Whether a block runs more than once for one loss: a decoder that is given a source as its own text."""
        return self.model.kind == "decoder" and self.data.batch(self.recipe.seed, 0).source_BS is not None

    def _hire(self) -> Workers:
        """Threads for micro-batches: on a CPU as many as there are cores, each with its share of them."""
        count, threads = 1, max(1, self.cores)
        if self.device.type == "cpu":
            keep_freed_memory()
            workers, own = self.config.workers, len(self.team.share(self.config.accumulate))
            count, threads = shares(self.cores, 1 if self.placement.shared_out else workers, own)
        now = conditions(self.device, count, threads, torch.get_num_threads(), self.team.size, self.config.parallel)
        if self.config.deterministic:
            self.team.first(lambda: require_same_conditions(read_log(self.log.path), now))
        self.team.copy_from_first([] if self.placement.shared_out else list(model_tensors(self.model).values()))
        self.log.append(
            {
                "kind": "start",
                "step": self.spent.steps,
                "parameters": self.model.parameter_count(),
                "began": None if self.recipe.start is None else self.recipe.start.model_dump(),
                "deterministic": self.config.deterministic,
                **now,
            }
        )
        return Workers(self.model, count, threads)

    def has_budget(self) -> bool:
        """Whether there is something left to spend, and nobody asked to stop."""
        _, stop = self._agree()
        if stop:
            self._stop_here()
        if self.config.patience and self.since_best >= self.config.patience:
            return False
        return self.spent.fraction(self.config.budget) < 1

    def _stop_here(self) -> None:
        self.save()
        steps = f"{self.spent.steps:,}"
        self.team.end(Interrupted(f"stopped and saved at step {steps}; the same command goes on from there"))

    def step(self) -> None:
        """One update of the weights."""
        step = self.spent.steps
        if self._is_hopeless():
            self._begin_anew()
        batches = self._micro_batches(step)
        tokens, examples, flops = self.team.sum(
            [
                sum(batch.tokens for batch in batches.values()),
                sum(batch.examples for batch in batches.values()),
                sum(self._flops(batch) for batch in batches.values()),
            ]
        )
        share = tokens if self.config.loss_per == "token" else examples
        self.workers.train(True)

        def job(batch: Any) -> Callable[[nn.Module], float]:
            def forward_backward(replica: nn.Module) -> float:
                total, segments = 0.0, losses(replica, batch, self.config.label_smoothing)  # type: ignore[arg-type]
                for _ in range(batch.segments):
                    with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
                        objective, summed = self.placement.loss(segments)
                    (objective / share).backward()
                    total += float(summed.detach())
                return total

            return forward_backward

        jobs = [(_mix(self.recipe.seed, step, number), job(batch)) for number, batch in batches.items()]
        totals = self.team.in_order(self.workers.run(jobs), self.config.accumulate)
        loss = sum(totals) / tokens
        self.placement.add_gradients()
        # A budget in minutes cannot foresee what this step will take, so it goes by what was spent before it.
        ahead = Spent(
            steps=step + 1, tokens=self.spent.tokens + int(tokens), seconds=self.spent.seconds, flops=self.spent.flops
        )
        factor = self.config.schedule.factor(ahead.fraction(self.config.budget))
        norm = self._clip()
        if self._is_sound(norm):
            self.optimizers.step(factor, self.workers)
            self.average.update(step + 1)
        for module in self.model.modules():
            if isinstance(module, Mixer | Model):
                module.after_step(step + 1)
        for _, parameter in self.placement.named_parameters():
            parameter.grad = None
        self.spent.add_step(int(tokens), flops)
        self._record(loss, norm, factor)

    def _clip(self) -> float:
        """Shortens the gradient where it is too long; its norm before that."""
        norm = self.placement.norm()
        parameters = [parameter for _, parameter in self.placement.named_parameters()]
        nn.utils.clip_grads_with_norm_(parameters, self.config.clip or math.inf, norm)
        return self.team.of_the_first([float(norm)])[0]  # so that all take the same decision

    def _is_hopeless(self) -> bool:
        """Whether an evaluation of these weights has just shown that nothing will come of them."""
        above, early = self.config.restart_above, self.spent.fraction(self.config.budget) <= RESTARTS_UNTIL
        return 0 < above < self.held_out_loss and early and self.evaluated_at == self.spent.steps

    def _begin_anew(self) -> None:
        """Other weights, with all of what was spent still spent.

        This is the beginning of a step, not the end of an evaluation: checkpoints of this moment hold what was
        evaluated, and a run that goes on from one of them comes by here again.
        """
        torch.manual_seed(_mix(self.recipe.seed, self.spent.steps, 0))
        fresh: Model = self.recipe.model.build(self.data.sizes)
        self.placement.fill(model_tensors(fresh), self.folder)
        self.optimizers = self.config.optimizer.build(self.placement, self.placement.gather_matrix)
        self.average = Average(self.config.average, self.placement)
        self._losses = []
        # With the number of the step to come: if that is lost, so is this line.
        self.log.append({"kind": "restart", "step": self.spent.steps + 1, "loss": self.held_out_loss})
        self.watcher.note(
            f"step {self.spent.steps:,}: the held-out loss is {self.held_out_loss:.3g}, above "
            f"{self.config.restart_above:g}: beginning anew with other weights"
        )

    def _micro_batches(self, step: int) -> dict[int, Any]:
        """Those of this process, by their number within the step."""
        first, own = step * self.config.accumulate, self.team.share(self.config.accumulate)
        return {n: to_device(self.data.batch(self.recipe.seed, first + n), self.device) for n in own}

    def _flops(self, batch: Any) -> float:
        """Forward and backward: a backward pass costs two forward passes."""
        source = 0 if batch.source_BS is None else batch.source_BS.shape[1]
        target = 0 if batch.input_BT is None else batch.input_BT.shape[1]
        rows = (batch.source_BS if batch.input_BT is None else batch.input_BT).shape[0]
        return 3.0 * rows * self.model.flops(source, target)

    def _is_sound(self, norm: float) -> bool:
        """The guard: a gradient that is no number, or far above its running mean, is not applied."""
        spiked = self.config.spike and self.spent.steps > 100 and norm > self.config.spike * self.usual_norm
        if math.isfinite(norm) and not spiked:
            self.skips = 0
            self.usual_norm += (norm - self.usual_norm) * max(0.02, 1 / (1 + self.spent.steps))
            return True
        self.skips += 1
        # With the number that the step will have: if it is lost, so is this line, and its replay writes it again.
        self.log.append({"kind": "skip", "step": self.spent.steps + 1, "norm": repr(norm)})
        self.watcher.note(f"step {self.spent.steps + 1:,}: a gradient of norm {norm:.3g} was not applied")
        if self.skips >= MOST_SKIPS:
            self.team.end(
                TrainingError(
                    f"step {self.spent.steps:,}: the gradient was useless {MOST_SKIPS} times in a row (norm {norm}); "
                    "lower train.optimizer.lr or lengthen train.schedule.warmup, and start a new run"
                )
            )
        return False

    def _record(self, loss: float, norm: float, factor: float) -> None:
        self._losses.append(loss)
        if self.spent.steps % self.config.log_every:
            return
        now = time.monotonic()
        record = {
            "kind": "step",
            "step": self.spent.steps,
            "loss": sum(self._losses) / len(self._losses),
            "lr_factor": factor,
            "norm": norm,
            "tokens": self.spent.tokens,
            "seconds": round(self.spent.seconds, 3),
            "flops": self.spent.flops,
            "tokens_per_second": round((self.spent.tokens - self._logged_tokens) / max(now - self._logged_at, 1e-9), 1),
        }
        self._losses, self._logged_at, self._logged_tokens = [], now, self.spent.tokens
        self._announce(record)

    def _announce(self, record: dict[str, Any]) -> None:
        self.log.append(record)
        self.board.add(record)
        self.watcher.progress(self.spent.fraction(self.config.budget), record)

    def look_at_start(self) -> None:
        """Scores the weights of another run before they change: they are kept if nothing better comes of them."""
        if self.recipe.start is not None and self.evaluated_at < 0:
            self._evaluate_or_stop()

    def look_up_if_due(self) -> None:
        """Evaluates after each `evaluate_every` of the budget; saves then, and every few minutes."""
        save_now, stop = self._agree()
        if self._due() > self.evaluations:
            if stop:  # perhaps another process was asked, and the first, which evaluates, knows nothing of it
                self._stop_here()
            self._evaluate_or_stop()
        elif save_now:
            self.save()

    def _agree(self) -> tuple[bool, bool]:
        """One clock for all processes, and one decision: whether it is time to save, and whether to stop.

        What is agreed upon must not replace what this process has been asked: it may be asked while they agree, and
        says so the next time.
        """
        save = time.monotonic() - self._saved_at > 60 * self.config.save_minutes
        stop = self._asked_to_stop or self.team.orphaned()
        if self.team.size == 1:
            return save, stop
        clock = [self.spent.seconds, save] if self.team.is_first else [0.0, 0.0]
        self.spent.seconds, saves, stops = self.team.sum([*clock, stop])
        return saves > 0, stops > 0

    def _due(self) -> int:
        """How many evaluations there should have been."""
        return int(self.spent.fraction(self.config.budget) / self.config.evaluate_every + 1e-9)

    def _evaluate_or_stop(self) -> None:
        """Evaluates. A long evaluation does not keep the run from stopping in time: it gives up between two batches."""

        def between(_: int) -> None:
            if self._asked_to_stop:
                raise _Abandoned

        try:
            self.evaluate(between)
        except _Abandoned:
            self._stop_here()

    def evaluate(self, between: Callable[[int], None] | None = None) -> None:
        """Scores the (averaged) weights on the validation split; saves a checkpoint, marked if it is the best yet."""
        greedy = SearchConfig(beam=1, batch_tokens=self.recipe.decode.batch_tokens)
        with self.average.swapped_in(), self.workers.at_rest():
            scores = self._score(None if self.config.metric == "loss" else greedy, between)
        self.evaluated_at, self.evaluations = self.spent.steps, self._due()
        chosen = find_score(scores, self.config.metric)
        if chosen is None:
            known = ", ".join(score.name for score in scores)
            self.team.end(ConfigError(f"train.metric: the task has no score {self.config.metric!r}; it has {known}"))
        loss = find_score(scores, "loss")
        assert loss is not None, "every task has one"
        self.held_out_loss = loss.value
        value = chosen.value if chosen.higher_is_better else -chosen.value
        # Coarse scores tie (nothing is exact yet): the loss decides then. A score that is no number is none.
        tied = value == self.best and self.best_loss is not None and loss.value < self.best_loss
        is_best = value == value and (self.best is None or value > self.best or tied)
        if is_best:
            self.best, self.best_loss, self.best_step = value, loss.value, self.spent.steps
        self.since_best = 0 if is_best else self.since_best + 1
        self.spent.tick()
        record = {"kind": "evaluation", "step": self.spent.steps, "tokens": self.spent.tokens, "best": is_best}
        record |= {"seconds": round(self.spent.seconds, 3), "flops": self.spent.flops}
        record |= {score.name: score.value for score in scores}
        self._announce(record)
        self.save()

    def _score(self, search: SearchConfig | None, between: Callable[[int], None] | None) -> list[Score]:
        """Scores of the weights as they are, measured by the first process and told to all."""
        model = self.placement.gather()

        def measure() -> list[dict[str, Any]] | None:
            assert model is not None, "the first process has it"
            try:
                return [asdict(score) for score in evaluate(model, self.data, "valid", search, between)]
            except _Abandoned:
                return None

        told = self.team.first(measure)
        if told is None:
            raise _Abandoned
        return [Score(**score) for score in told]

    def save(self) -> None:
        """A checkpoint of now, marked if no evaluation was better than the one just made."""
        self.spent.tick()
        state = {
            "spent": self.spent.as_dict(),
            "evaluations": self.evaluations,
            "evaluated_at": self.evaluated_at,
            "held_out_loss": self.held_out_loss,
            "since_best": self.since_best,
            "best": self.best,
            "best_loss": self.best_loss,
            "best_step": self.best_step,
            "usual_norm": self.usual_norm,
            "skips": self.skips,
            "losses": self._losses,
        }
        tensors = {"model": self.placement.tensors(), "optimizer": self.optimizers.tensors()}
        if self.average.copies:
            tensors["average"] = self.average.tensors()
        best = self.best_step == self.spent.steps
        if self.placement.shared_out:
            save_shards(self.checkpoints, self.team, self.spent.steps, tensors, state, best)
        else:
            self.team.first(lambda: _name(self.checkpoints.save(self.spent.steps, tensors, state, best)))
        self._saved_at = time.monotonic()

    def _resume(self, path: Path) -> None:
        """Goes on from a checkpoint."""
        try:
            self._restore(path)
        except (FolderError, LookupError, TypeError, ValueError, AttributeError) as error:  # whole, but not of this run
            reason = str(error) if isinstance(error, FolderError) else f"{type(error).__name__}: {error}"
            raise FolderError(f"{path}: is no checkpoint of this recipe: {reason.removeprefix(f'{path}: ')}") from None
        self.log.rewind(self.spent.steps)
        self.watcher.note(f"going on from step {self.spent.steps:,}")

    def _restore(self, path: Path) -> None:
        checkpoint = self.checkpoints.load(path)
        self.placement.fill(checkpoint.tensors["model"], path)
        self.optimizers.load_tensors(self.placement.cut(checkpoint.tensors["optimizer"]))
        self.average.load_tensors(self.placement.cut(checkpoint.tensors.get("average", {})))
        state = checkpoint.state
        self.spent = Spent(**{name: state["spent"][name] + 0 for name in ("steps", "tokens", "seconds", "flops")})
        self.evaluations, self.evaluated_at = state["evaluations"], state["evaluated_at"]
        self.held_out_loss = state.get("held_out_loss", 0.0)  # older checkpoints lack it
        self.since_best, self.best, self.best_step = state["since_best"], state["best"], state["best_step"]
        self.best_loss = state.get("best_loss")
        self.usual_norm, self.skips, self._losses = state["usual_norm"], state["skips"], state["losses"]

    def finish(self) -> Path:
        """The best weights, scored with the recipe's own search, as a model folder."""
        if self.evaluated_at != self.spent.steps:
            self.evaluate()
        self.workers.close()  # decoding may use all cores again
        model = self.placement.gather()
        self.team.first(lambda: self._write_model(model))
        return self.folder / "model"

    def _write_model(self, model: Model | None) -> None:
        path = self.checkpoints.best() or self.checkpoints.latest()
        assert path is not None, "an evaluation has just saved one"
        assert model is not None, "the first process has it"
        checkpoint = self.checkpoints.load(path)
        fill_model(model, checkpoint.tensors["model"], path)
        average = Average(self.config.average, model)
        average.load_tensors(checkpoint.tensors.get("average", {}))
        self.watcher.note("measuring the best weights on the validation split")
        with average.swapped_in():
            scores = evaluate(model, self.data, "valid", self.recipe.decode)
            how = determinism_lines(self.recipe, read_log(self.log.path))
            card = model_card(self.recipe, model, self.spent, checkpoint.step, scores, self.data.notes, how)
            end = {"kind": "end", "step": self.spent.steps, "chosen": checkpoint.step, **self.spent.as_dict()}
            # Before the model, which makes this run a finished one: a finished run always says what it found.
            self.log.append(end | {score.name: score.value for score in scores})
            save_folder(self.folder / "model", model, self.data.codec, self.recipe, card)

    def close(self) -> None:
        """Ends the threads and closes the log."""
        self.workers.close()
        self.board.close()
        self.log.close()

    def stop(self) -> None:
        """Asks the run to save and stop after the step it is in."""
        self._asked_to_stop = True


def _mix(seed: int, step: int, number: int) -> int:
    """One seed from three numbers, such that neighbours have nothing in common (splitmix64)."""
    mixed = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + number * 0x94D049BB133111EB) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (mixed ^ (mixed >> 31)) >> 1


def _name(path: Path | None) -> str | None:
    return None if path is None else path.name


def _require_buildable(recipe: Recipe) -> None:
    """Impossible sizes are found here, before a corpus is read."""
    with torch.device("meta"), SizeGuard(MOST_TENSORS, MOST_NUMBERS, "any that could be trained"):
        recipe.model.build(Sizes(8, 8, shared=True))


def _is_finished(folder: Path, watcher: Watcher) -> bool:
    """Whether there is a model, and a whole one: a damaged one is made again from the best checkpoint."""
    if not (folder / "model").exists():
        return False
    try:
        verify(folder / "model")
    except FolderError as error:
        watcher.note(f"{error}; it is made again")
        return False
    return True
