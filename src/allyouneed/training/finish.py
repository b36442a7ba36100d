"""The end of a run: the best weights, measured with the recipe's own search, become a model folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from allyouneed.adapter import AdapterConfig, save_adapter
from allyouneed.folder import save_folder
from allyouneed.models import Model
from allyouneed.tasks import Score, TaskData
from allyouneed.training.card import model_card
from allyouneed.training.checkpoint import Checkpoints
from allyouneed.training.determinism import determinism_lines
from allyouneed.training.evaluate import Measurement
from allyouneed.training.log import Log, read_log
from allyouneed.training.pace import LEAST_FINAL_ITEMS, TimePlan, measure_within
from allyouneed.training.progress import Progress, ProgressListener
from allyouneed.training.recipe import Recipe
from allyouneed.weights import fill_model


@dataclass(frozen=True)
class ModelWriter:
    """What the model folder of a run is made from. Only rank 0 uses it."""

    recipe: Recipe
    folder: Path  # of the run
    data: TaskData
    checkpoints: Checkpoints
    progress: Progress
    plan: TimePlan | None
    log: Log
    listener: ProgressListener

    def write(self, model: Model) -> None:
        """Write the model folder, with the weights of the best checkpoint put into `model`."""
        path = self.checkpoints.best() or self.checkpoints.latest()
        assert path is not None, "an evaluation has just saved one"
        checkpoint, spent = self.checkpoints.load(path), self.progress.spent
        fill_model(model, checkpoint.tensors["model"], path)
        average = self.recipe.train.average.build(model)
        average.load_tensors(checkpoint.tensors.get("average", {}))
        self.listener.note(f"measuring the chosen weights, of step {checkpoint.step:,}, on the validation split")
        with average.swapped_in():
            scores, part = self._scores(model)
            how = determinism_lines(self.recipe, read_log(self.log.path))
            card = model_card(self.recipe, model, spent, checkpoint.step, scores, self.data.notes, how, part)
            end = {"kind": "end", "step": spent.steps, "chosen": checkpoint.step, **spent.as_dict()}
            # Before the model, whose presence marks the run as finished: the log of a finished run has its scores.
            self.log.append(end | {score.name: score.value for score in scores})
            self._save_adapter(checkpoint.tensors.get("lora", {}))
            save_folder(self.folder / "model", model, self.data.codec, self.recipe, card)

    def _save_adapter(self, tensors: Mapping[str, Tensor]) -> None:
        """Write what LoRA has learnt as a folder, without the model."""
        lora, start = self.recipe.train.lora, self.recipe.start
        if lora is not None and start is not None:
            config = AdapterConfig(base=start.sha256, folder=start.folder, rank=lora.rank, alpha=lora.alpha)
            save_adapter(self.folder / "adapter", config, tensors)

    def _scores(self, model: Model) -> tuple[list[Score], str]:
        """Return the scores and, if there is no time for all held-out items, a sentence about it."""
        measurement, spent = Measurement(model, self.data, "valid", self.recipe.decode), self.progress.spent
        if self.plan is None:
            measurement.extend()
            return measurement.scores(), ""
        spent.tick()
        before = spent.seconds
        measure_within(measurement, self.plan.final_seconds(before), self.plan.allowance, LEAST_FINAL_ITEMS)
        spent.tick()
        self.log.append(self.plan.account(spent.steps, spent.seconds, spent.seconds - before))
        if measurement.whole:
            return measurement.scores(), ""
        part = (
            f"Measured on {measurement.items:,} of {measurement.size:,} held-out items: more did not fit into the "
            "minutes. `allyouneed evaluate` measures all; a larger train.evaluation_share leaves more time."
        )
        self.listener.note(part)
        return measurement.scores(), part
