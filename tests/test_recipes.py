"""Every built-in recipe loads and its model builds; the paper's recipes have the paper's sizes."""

from pathlib import Path

import pytest
import torch

from allyouneed.config import merge, parse, read_recipe, to_toml
from allyouneed.errors import ConfigError
from allyouneed.sizes import Sizes
from allyouneed.training import Recipe, find_recipe, load_recipe, recipe_folder
from allyouneed.training.recipe_files import require_same_recipe

NAMES = sorted(path.stem for path in recipe_folder().glob("*.toml"))
VOCABULARY = 37_000


def parameters(name: str, vocabulary: int = 59) -> int:
    """Count the parameters of a recipe's model, built without memory."""
    with torch.device("meta"):
        return load_recipe(name).model.build(Sizes(vocabulary, vocabulary, shared=True)).parameter_count()


@pytest.mark.parametrize("name", NAMES)
def test_recipe_loads_and_its_model_builds(name):
    recipe = load_recipe(name)
    assert recipe.about
    assert parameters(name) > 0


@pytest.mark.parametrize("name", NAMES)
def test_toml_round_trip_keeps_the_recipe(name, tmp_path):
    path = tmp_path / "again.toml"
    path.write_text(to_toml(load_recipe(name)), encoding="utf-8")
    assert load_recipe(str(path)) == load_recipe(name)


def by_hand(width: int, hidden: int, vocabulary: int = VOCABULARY) -> int:
    """Count the parameters of table 3's models from the equations of section 3."""
    attention = 4 * (width * width + width)
    norm, feedforward = 2 * width, 2 * width * hidden + hidden + width
    encoder = attention + feedforward + 2 * norm
    decoder = 2 * attention + feedforward + 3 * norm
    return vocabulary * width + 6 * (encoder + decoder)


@pytest.mark.parametrize(
    ("name", "width", "hidden", "millions"), [("transformer-base", 512, 2048, 65), ("transformer-big", 1024, 4096, 213)]
)
def test_the_papers_models_have_the_papers_size(name, width, hidden, millions):
    count = parameters(name, VOCABULARY)
    print(f"{name}: {count:,} parameters with {VOCABULARY:,} shared tokens; the paper reports {millions}M")
    assert count == by_hand(width, hidden)
    # The paper rounds, and states the vocabulary only as "about 37,000" tokens.
    assert count == pytest.approx(millions * 1e6, rel=0.035)


@pytest.mark.parametrize(("name", "width", "steps"), [("transformer-base", 512, 1e5), ("transformer-big", 1024, 3e5)])
def test_the_papers_learning_rate(name, width, steps):
    train = load_recipe(name).train
    assert train.budget.steps == steps
    for step in (1, 100, 3_999, 4_001, 25_000, steps):
        ours = train.optimizer.lr * train.schedule.factor(step / steps)
        assert ours == pytest.approx(width**-0.5 * min(step**-0.5, step * 4000**-1.5), rel=1e-4)


def test_the_big_recipe_differs_from_the_base_recipe_only_where_the_paper_does():
    base, big = (load_recipe(name).model_dump() for name in ("transformer-base", "transformer-big"))
    assert base["task"] == big["task"]
    assert base["decode"] == big["decode"]
    assert {key for key in base["model"] if base["model"][key] != big["model"][key]} == {
        "width",
        "hidden",
        "dropout",
        "mixer",
    }


def test_extends_starts_from_another_file():
    path = find_recipe("transformer-big")
    tree = read_recipe(path)
    assert tree["model"]["encoder_layers"] == 6
    assert parse(Recipe, merge(tree, {"seed": 3})).seed == 3


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("ntm-copy", "task.bits=10", r"model.bits=8 should be task.bits=10"),
        ("ntm-copy", "model.read_heads=0", "needs a read head to depend on the source"),
        ("show-attend-tell-emoji", "model.size=64", "32 pixels a side"),
        ("show-attend-tell-emoji", 'task.fonts=["noto","noto"]', "at most once"),
        ("memn2n-babi", "model.linear_start=100000000", "should be below"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(name: str, wrong: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe(name, sets=[wrong])


def test_a_run_resumes_after_the_words_of_a_recipe_have_changed(tmp_path: Path) -> None:
    recipe = load_recipe("copy")
    (tmp_path / "recipe.toml").write_text(to_toml(recipe.model_copy(update={"about": "other words"})))
    require_same_recipe(tmp_path, recipe)
    with pytest.raises(ConfigError, match="seed is 1 there, 2 now"):
        require_same_recipe(tmp_path, recipe.model_copy(update={"seed": 2}))
