"""The training loop (`loop.py`) and its parts."""

from allyouneed.training.evaluate import evaluate
from allyouneed.training.loop import train
from allyouneed.training.recipe import Recipe, TrainConfig
from allyouneed.training.recipe_files import find_recipe, load_recipe, recipe_folder
from allyouneed.training.stopping import Interrupted

__all__ = ["Interrupted", "Recipe", "TrainConfig", "evaluate", "find_recipe", "load_recipe", "recipe_folder", "train"]
