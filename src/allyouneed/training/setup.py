"""What happens before the first step: the run folder, the data, the model and the threads."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from allyouneed.errors import ConfigError, FolderError
from allyouneed.folder import OUTLINE
from allyouneed.malloc import keep_freed_memory
from allyouneed.models import Model
from allyouneed.sizes import Sizes
from allyouneed.storage import lock, refuse_foreign, refuse_links, verify
from allyouneed.tasks import TaskData
from allyouneed.text.codec import Codec
from allyouneed.training.checkpoint import Checkpoints
from allyouneed.training.determinism import conditions, require_same_conditions
from allyouneed.training.evaluate import names_of_scores
from allyouneed.training.extension import is_extended
from allyouneed.training.log import Log, NoLog, read_log
from allyouneed.training.lora import matching
from allyouneed.training.memory import require_memory
from allyouneed.training.parallel import Parallelism
from allyouneed.training.preparing import run_data
from allyouneed.training.process_group import ProcessGroup
from allyouneed.training.progress import ProgressListener
from allyouneed.training.recipe import Recipe
from allyouneed.training.recipe_files import require_same_recipe
from allyouneed.training.start import describe_new, describe_start
from allyouneed.training.stopping import Interrupted, stop_signals
from allyouneed.training.workers import Workers, shares
from allyouneed.weights import SizeGuard, model_tensors

# The names that a run folder uses.
RUN_FOLDERS = ("adapter", "checkpoints", "data", "distilled", "model", OUTLINE, "tensorboard")
RUN_NAMES = (*RUN_FOLDERS, "lock", "log.jsonl", "recipe.toml")
MAX_TENSORS, MAX_NUMBERS = 1 << 15, 1 << 44  # of a model: a recipe that exceeds them is a mistake, or hostile


def require_buildable(recipe: Recipe, folder: Path, device: str = "cpu") -> None:
    """Refuse impossible sizes, and for new runs an optimizer that does not suit the model, before any data is read."""
    with torch.device("meta"), SizeGuard(MAX_TENSORS, MAX_NUMBERS, "any that could be trained"):
        model = recipe.model.build(Sizes(8, 8, shared=True))
    if not (folder / "recipe.toml").exists():
        recipe.train.optimizer.check_model(model)
        if device == "cpu":
            require_memory(recipe, model)


def open_run_folder(held: ExitStack, recipe: Recipe, folder: Path, listener: ProgressListener) -> bool:
    """Lock the run folder, refuse it if it belongs to another recipe; return whether the run is finished."""
    refuse_foreign(folder, "a run folder", ("recipe.toml",), RUN_NAMES)
    folder.mkdir(parents=True, exist_ok=True)
    refuse_links(folder, RUN_NAMES)
    held.enter_context(lock(folder))
    require_same_recipe(folder, recipe, or_larger=True)
    return _is_finished(folder, listener) and not is_extended(folder, recipe)


def _is_finished(folder: Path, listener: ProgressListener) -> bool:
    """Return whether there is an intact model. A damaged one is written again from the best checkpoint."""
    if not (folder / "model").exists():
        return False
    try:
        verify(folder / "model")
    except FolderError as error:
        listener.note(f"{error}; it is written again")
        return False
    return True


def prepare_data(recipe: Recipe, folder: Path, group: ProcessGroup) -> TaskData:
    """Return the task's data. Rank 0 prepares the files, the others read them.

    A signal raises Interrupted at once: what is prepared already is kept in stages.
    """
    with stop_signals(_StopPreparation(group), keep_handling=group.size > 1):
        data = group.rank0_first(lambda: run_data(recipe, folder))
    known = names_of_scores(data, recipe.model.kind)
    if recipe.train.metric not in known:
        group.fail(
            ConfigError(f"train.metric: the task has no score {recipe.train.metric!r}; it has {', '.join(known)}")
        )
    two_texts = data.codec.source is not None and data.codec.target is not None
    if recipe.model.kind == "decoder" and two_texts and not data.sizes.shared:
        group.fail(
            ConfigError("a decoder reads source and target as one text: it needs one vocabulary, task.shared=true")
        )
    return data


class _StopPreparation:
    """What a signal does during preparation: it ends the work of rank 0, once. The other ranks wait for rank 0."""

    def __init__(self, group: ProcessGroup) -> None:
        self._works = group.is_rank0

    def __call__(self) -> None:
        if self._works:
            self._works = False
            raise Interrupted("stopped while preparing the data; the same command continues from there")


def newest_checkpoint(checkpoints: Checkpoints, group: ProcessGroup) -> Path | None:
    """Return the newest intact checkpoint, the same for all processes."""

    def name() -> str | None:
        latest = checkpoints.latest()
        return None if latest is None else latest.name

    found = group.on_rank0(name)
    return None if found is None else checkpoints.folder / found


def runs_blocks_twice(recipe: Recipe, model: Model, data: TaskData) -> bool:
    """Return whether blocks run more than once for one loss: in a decoder that reads a source as its own text."""
    return model.kind == "decoder" and data.batch(recipe.seed, 0).source_BS is not None


def load_start(
    recipe: Recipe, model: Model, codec: Codec, group: ProcessGroup, listener: ProgressListener, *, new: bool
) -> None:
    """Copy the weights that a new run starts from, if any, into the model; freeze those that are not trained.

    A run that adapts a model (LoRA) needs the weights of that model when it resumes, too.
    """
    start, config = recipe.start, recipe.train
    if start is not None and (new or config.lora is not None):
        fresh = group.on_every_rank(lambda: start.fill(model, codec))
        if fresh and config.lora is not None:
            group.fail(
                ConfigError(
                    f"train.lora: the head is new ({', '.join(fresh)}), and an adapter has none; train it without "
                    "lora, for example with train.freeze=['encoder.*']"
                )
            )
        if new:
            listener.note(f"starting from {describe_start(start)}{describe_new(model, fresh)}")
    group.on_every_rank(lambda: freeze_weights(model, config.freeze or []))


def freeze_weights(model: Model, patterns: Sequence[str]) -> None:
    """Exclude the weights that patterns match from training. Raise ConfigError if none is left."""
    frozen = matching(model, patterns, "train.freeze")
    for name, weight in model.named_parameters():
        weight.requires_grad_(name not in frozen)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ConfigError(f"train.freeze={patterns}: matches all weights; leave some to train")


def open_log(folder: Path, group: ProcessGroup) -> Log:
    """Open the log of the run; only rank 0 writes it."""
    return Log(folder / "log.jsonl") if group.is_rank0 else NoLog()


def start_workers(
    recipe: Recipe, model: Model, parallelism: Parallelism, group: ProcessGroup, cores: int | None, log: Log, step: int
) -> Workers:
    """Start the threads for micro-batches, and log the conditions that the bits of the run depend on.

    On a CPU there are as many threads as cores, each with its share of the micro-batches.
    """
    config, device, cores = recipe.train, next(model.parameters()).device, cores or group.cores
    count, threads = 1, max(1, cores)
    if device.type == "cpu":
        keep_freed_memory()
        own = len(group.share(config.accumulate))
        count, threads = shares(cores, 1 if parallelism.sharded else config.workers, own)
    now = conditions(device, count, threads, torch.get_num_threads(), group.size, config.parallel)
    if config.deterministic:
        group.on_rank0(lambda: require_same_conditions(read_log(log.path), now))
    group.broadcast([] if parallelism.sharded else list(model_tensors(model).values()))
    log.append(
        {
            "kind": "start",
            "step": step,
            "parameters": model.parameter_count(),
            "began": None if recipe.start is None else recipe.start.model_dump(),
            "deterministic": config.deterministic,
            "precision": config.precision,
            **now,
        }
    )
    return Workers(model, count, threads)
