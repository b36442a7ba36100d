"""The gradient of one step, from micro-batches that run side by side in threads and processes."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from allyouneed.models import Model
from allyouneed.tasks import TaskData
from allyouneed.tasks.base import Batch
from allyouneed.tasks.loss import losses
from allyouneed.training.copies import join_gradients
from allyouneed.training.evaluate import to_device
from allyouneed.training.parallel import Parallelism
from allyouneed.training.process_group import ProcessGroup
from allyouneed.training.recipe import Recipe
from allyouneed.training.workers import Workers


@dataclass(frozen=True)
class StepTotals:
    """The training loss of one step, and what the step cost."""

    loss: float  # nats per token
    tokens: int
    flops: float


class Gradients:
    """Computes and clips the gradient of a step, summed over its micro-batches, workers and processes."""

    def __init__(
        self, recipe: Recipe, data: TaskData, parallelism: Parallelism, workers: Workers, group: ProcessGroup
    ) -> None:
        self.recipe, self.config, self.data = recipe, recipe.train, data
        self.parallelism, self.workers, self.group = parallelism, workers, group

    def compute(self, step: int) -> StepTotals:
        """Run forward and backward for all micro-batches of a step; leave the summed gradients on the parameters."""
        batches = self._micro_batches(step)
        tokens, examples, flops = self.group.sum(
            [
                sum(batch.tokens for batch in batches.values()),
                sum(batch.examples for batch in batches.values()),
                sum(self._flops(batch) for batch in batches.values()),
            ]
        )
        divisor = tokens if self.config.loss_per == "token" else examples
        self.workers.train(True)
        jobs = [
            (mix_seed(self.recipe.seed, step, number), self._job(batch, divisor)) for number, batch in batches.items()
        ]
        totals = self.group.per_micro_batch(self.workers.run(jobs), self.config.accumulate)
        join_gradients(self.workers.model, self.data.codec)
        self.parallelism.add_gradients()
        return StepTotals(sum(totals) / tokens, int(tokens), flops)

    def clip(self) -> float:
        """Scale the gradient down to the largest allowed norm; return its norm before that."""
        norm = self.parallelism.norm()
        parameters = [parameter for _, parameter in self.parallelism.named_parameters()]
        nn.utils.clip_grads_with_norm_(parameters, self.config.clip or math.inf, norm)
        return self.group.from_rank0(float(norm))  # so that all processes take the same decision

    def _micro_batches(self, step: int) -> dict[int, Batch]:
        """Return this process's micro-batches by their number within the step."""
        first, own = step * self.config.accumulate, self.group.share(self.config.accumulate)
        return {n: to_device(self.data.batch(self.recipe.seed, first + n), self.workers.device) for n in own}

    def _job(self, batch: Batch, divisor: float) -> Callable[[nn.Module], float]:
        return partial(self._forward_backward, batch, divisor)

    def _forward_backward(self, batch: Batch, divisor: float, replica: nn.Module) -> float:
        """Add the gradient of one micro-batch to the replica; return the summed loss."""
        total, segments = 0.0, losses(replica, batch, self.config.label_smoothing)  # type: ignore[arg-type]
        for _ in range(batch.segments):
            with self._precision():
                objective, summed = self.parallelism.loss(segments)
            (objective / divisor).backward()
            total += float(summed.detach())
        return total

    def _precision(self) -> torch.autocast:
        """Return the context of a forward pass. `docs/decisions/0006-bfloat16-on-a-cpu.md` states what it means."""
        kind, bfloat16 = self.workers.device.type, self.config.precision == "bfloat16"
        # Threads share autocast's cache of rounded weights. When one empties it, others round a weight of two uses a
        # second time, and its gradients are added in another type: the bits would depend on the time.
        return torch.autocast(kind, torch.bfloat16, enabled=bfloat16, cache_enabled=kind != "cpu")

    def _flops(self, batch: Batch) -> float:
        """Return the FLOPs of forward and backward: a backward pass costs two forward passes."""
        source = 0 if batch.source_BS is None else batch.source_BS.shape[1]
        target = 0 if batch.input_BT is None else batch.input_BT.shape[1]
        ids = batch.source_BS if batch.input_BT is None else batch.input_BT
        assert ids is not None
        assert isinstance(self.workers.model, Model)
        return 3.0 * ids.shape[0] * self.workers.model.flops(source, target)


def mix_seed(seed: int, step: int, number: int) -> int:
    """Hash three numbers to one seed, such that neighbours are unrelated (splitmix64)."""
    mixed = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + number * 0x94D049BB133111EB) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (mixed ^ (mixed >> 31)) >> 1
