"""The model card: README.md of a model folder."""

from allyouneed.config import to_toml
from allyouneed.models import Model
from allyouneed.tasks import Score
from allyouneed.training.budget import Spent
from allyouneed.training.recipe import Recipe
from allyouneed.training.start import StartConfig, describe_start
from allyouneed.version import __version__


def _from(start: StartConfig | None) -> str:
    return "from scratch" if start is None else f"from {describe_start(start)}"


def model_card(
    recipe: Recipe,
    model: Model,
    spent: Spent,
    step: int,
    scores: list[Score],
    notes: list[str],
    how: list[str],
    part: str = "",
) -> str:
    """Return the text of the model card. `part`: which part of the held-out items the scores are of, if not of all."""
    lines = [
        f"# {recipe.task.type}: {recipe.model.type}",
        "",
        recipe.about,
        "",
        f"{model.parameter_count():,} parameters, trained {_from(recipe.start)} with allyouneed {__version__}.",
        "",
        "## Budget",
        "",
        f"{spent.steps:,} steps, {spent.tokens:,} predicted tokens, {spent.seconds / 60:.1f} minutes, "
        f"{spent.flops:.3g} FLOPs. The weights are those of step {step:,}.",
        "",
        "## Scores",
        "",
        *(f"- {score.name} = {score.value:.4f} `{score.signature}`" for score in scores),
        "",
        *([part, ""] if part else []),
    ]
    if notes:
        lines += ["## Data", "", *(f"- {note}" for note in notes), ""]
    lines += ["## Determinism", "", *how, ""]
    lines += ["## Recipe", "", "```toml", to_toml(recipe).rstrip(), "```", ""]
    return "\n".join(lines)
