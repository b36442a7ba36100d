"""A recipe: everything a run depends on. Task, model, training and decoding, as a TOML file."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from allyouneed.config import Config
from allyouneed.decode import SearchConfig
from allyouneed.models import AnyModel
from allyouneed.tasks import AnyTask
from allyouneed.training.average import AnyAverage, NoAverageConfig
from allyouneed.training.budget import BudgetConfig
from allyouneed.training.lora import LoraConfig
from allyouneed.training.optimizer import AdamConfig, AnyOptimizer, MuonConfig
from allyouneed.training.process_group import Parallel
from allyouneed.training.schedule import AnySchedule, InverseSqrtConfig
from allyouneed.training.start import StartConfig

Smoothing = Annotated[float, Field(ge=0, lt=1)]
Precision = Literal["auto", "float32", "bfloat16"]


class TrainConfig(Config):
    """How a model is trained. The defaults are those of the paper, except for the budget."""

    budget: BudgetConfig = BudgetConfig(steps=100_000)
    optimizer: AnyOptimizer = AdamConfig()
    schedule: AnySchedule = InverseSqrtConfig()
    average: AnyAverage = NoAverageConfig()
    label_smoothing: Smoothing = 0.1
    loss_per: Literal["token", "example"] = "token"  # the gradient is a mean over these; example: long ones weigh more
    accumulate: PositiveInt = 1  # micro-batches (batches of the task) per step; on a CPU they run side by side
    workers: NonNegativeInt = 0  # micro-batches that run side by side; 0: as many as cores, at most `accumulate`
    parallel: Parallel = "none"  # with several processes (torchrun): whole models, or sharded ones
    clip: NonNegativeFloat = 1.0  # the largest norm of the gradient; 0: unlimited
    spike: NonNegativeFloat = 20.0  # skip a gradient this many times above its running mean; 0: never
    precision: Precision = "auto"  # of products (docs/runs.md#precision); auto: bfloat16 where it is measured to pay
    evaluate_every: Annotated[float, Field(gt=0, le=1)] = 0.1  # fraction of the budget
    # Most of a budget in minutes that evaluations may take: they use fewer items, or are fewer. Other budgets are
    # repeatable, so their evaluations do not depend on the time.
    evaluation_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    metric: str = "loss"  # chooses the best checkpoint: loss, or a score of the task (decoded greedily)
    patience: NonNegativeInt = 0  # end the run after this many evaluations without a new best; 0: never
    # Restart from other random weights if the held-out loss of an evaluation in the first half of the budget is above
    # this; 0: never. Some models fail to learn from some initial weights.
    restart_above: NonNegativeFloat = 0.0
    # Use only algorithms with a fixed order of summation: the same bits on the same machine with the same threads.
    deterministic: bool = False
    save_minutes: PositiveFloat = 5.0  # between checkpoints; each evaluation saves one too
    log_every: PositiveInt = 10  # steps
    lora: LoraConfig | None = None  # train thin matrices beside those of a model (`start`), not its weights
    freeze: list[str] | None = None  # patterns of the names of weights that are not trained


class Recipe(Config):
    """The whole run."""

    about: str = ""  # one sentence for the reader
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1
    task: AnyTask
    model: AnyModel
    train: TrainConfig = TrainConfig()
    decode: SearchConfig = SearchConfig()
    start: StartConfig | None = None  # None: random weights

    @model_validator(mode="after")
    def _fits(self) -> "Recipe":
        if self.model.kind not in self.task.kinds:
            raise ValueError(
                f"task {self.task.type!r} needs a model of kind {' or '.join(sorted(self.task.kinds))}; "
                f"{self.model.type!r} is {self.model.kind}"
            )
        self.model.check_task(self.task.traits())
        if self.train.budget.steps:
            self.model.check_steps(self.train.budget.steps)
        self._check_restart()
        self._check_deterministic()
        self._check_trained_part()
        return self

    def _check_restart(self) -> None:
        if self.train.restart_above and self.start is not None:
            raise ValueError(
                "train.restart_above restarts from random weights; this run starts from those of a model folder"
            )

    def _check_deterministic(self) -> None:
        if self.train.deterministic and self.train.budget.minutes is not None:
            raise ValueError(
                "train.deterministic: the number of steps in a budget of minutes depends on the load of the machine; "
                "give the budget in steps, tokens or flops"
            )

    def _check_trained_part(self) -> None:
        train = self.train
        if train.parallel == "fsdp" and (train.lora or train.freeze):
            raise ValueError("train.parallel='fsdp' trains all weights; use ddp with train.lora and train.freeze")
        if train.lora is None:
            return
        if self.start is None:
            raise ValueError("train.lora adapts the weights of a model folder; start from one: train --from FOLDER")
        if train.freeze:
            raise ValueError("train.freeze has no effect with train.lora, which trains its targets alone; remove it")
        if not isinstance(train.average, NoAverageConfig):
            raise ValueError("train.average averages weights, and train.lora trains others; set train.average='none'")
        if isinstance(train.optimizer, MuonConfig):
            raise ValueError("train.optimizer: muon is for whole matrices, and train.lora trains thin ones; use adamw")
