"""Guards of the training loop: gradients that are not applied, and starts that are given up."""

import math

from allyouneed.training.progress import Progress
from allyouneed.training.recipe import TrainConfig

RESTARTS_UNTIL = 0.5  # fraction of the budget: a later restart would have too little time
MAX_SKIPS = 25  # consecutive steps without a usable gradient before a run gives up
SETTLED_STEPS = 100  # before that, the running mean of the norm is not used to detect spikes


def accept_gradient(progress: Progress, norm: float, spike: float) -> bool:
    """Return whether to apply a gradient of this norm: it is finite, and not `spike` times above the running mean.

    Update the running mean and the count of consecutive skips.
    """
    settled = progress.spent.steps > SETTLED_STEPS
    spiked = spike and settled and norm > spike * progress.usual_norm
    if not math.isfinite(norm) or spiked:
        progress.skips += 1
        return False
    progress.skips = 0
    progress.usual_norm += (norm - progress.usual_norm) * max(0.02, 1 / (1 + progress.spent.steps))
    return True


def should_restart(progress: Progress, config: TrainConfig) -> bool:
    """Return whether the evaluation just made shows that training from these weights will not succeed."""
    above, early = config.restart_above, progress.spent.fraction(config.budget) <= RESTARTS_UNTIL
    return 0 < above < progress.held_out_loss and early and progress.evaluated_at == progress.spent.steps
