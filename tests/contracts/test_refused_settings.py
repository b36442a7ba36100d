"""Settings without effect are refused where a person gives them, and accepted in what earlier versions stored."""

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from allyouneed.config import merge, parse
from allyouneed.errors import ConfigError
from allyouneed.sizes import Sizes
from allyouneed.training import load_recipe, train
from allyouneed.training.recipe_files import read_stored_recipe, require_effective_if_new, require_same_recipe
from allyouneed.training.schedule import SCHEDULES
from allyouneed.training.setup import require_buildable


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "optimizer={type='adam',weight_decay=0.1}",
            "weight_decay has no effect with type 'adam'; remove it, or use adamw",
        ),
        ("optimizer={type='adam',matrix_lr=0.1}", "matrix_lr has no effect with type 'adam'; remove it, or use muon"),
        ("schedule={type='constant',decay=0.3}", "decay has no effect with type 'constant'"),
        ("schedule={type='inverse-sqrt',floor=0.1}", "floor has no effect with type 'inverse-sqrt'"),
        ("average={type='none',decay=0.9}", "decay has no effect with type 'none'; remove it, or use ema"),
        (
            "average={type='last',every=501}",
            r"train\.average\.every=501: has no effect, as no snapshot",
        ),
        ("workers=3", r"train\.workers=3: a step has 2 micro-batches"),
        ("patience=4", r"train\.patience=4: at most 3 evaluations follow"),
        ("evaluation_share=0.2", r"train\.evaluation_share=0\.2: has no effect with a budget in steps"),
    ],
)
def test_settings_without_effect_are_refused(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe("numbers-en-de", sets=[f"train.{setting}"])


@pytest.mark.parametrize(
    ("name", "sets", "message"),
    [
        ("ntm-copy", ["train.evaluate_every=0.6"], r"train\.restart_above=0\.5: has no effect"),
        ("listops", ["train.loss_per=example"], r"train\.loss_per='example': has no effect"),
        ("numbers-en-de", ["task.tokenizer={kind='bytes',size=300}"], r"task\.tokenizer\.size=300: has no effect"),
        ("listops", ["decode.beam=2"], r"decode\.beam: has no effect with an encoder"),
        ("shakespeare-char", ["decode.beam=2"], r"decode\.beam: has no effect with task 'language'"),
        ("copy", ["model.norm=none", "model.epsilon=1e-3"], r"model\.epsilon=0\.001: has no effect with norm='none'"),
        (
            "copy",
            ["train.budget.tokens=9", "train.average.type=last"],
            r"train\.average\.every=500: has no effect, as no snapshot is taken in 9 tokens",
        ),
    ],
)
def test_combinations_without_effect_are_refused(name: str, sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe(name, sets=sets)


FORMER_RECIPE = """
        [task]
        type = "copy"
        [model]
        type = "encoder-decoder"
        [train.optimizer]
        type = "adam"
        lr = 0.002
        matrix_lr = 0.02
        momentum = 0.95
        beta1 = 0.9
        beta2 = 0.98
        epsilon = 1e-9
        weight_decay = 0.1
        [train.schedule]
        type = "constant"
        warmup = 0.04
        decay = 0.3
        floor = 0.0
        [train.average]
        type = "none"
        decay = 0.998
        count = 5
        every = 500
        """


def test_a_resolved_recipe_of_an_earlier_version_still_loads(tmp_path: Path) -> None:
    """It holds every setting of the config that once served all types, with any value: they had no effect then."""
    (tmp_path / "recipe.toml").write_text(FORMER_RECIPE)
    train = load_recipe(str(tmp_path / "recipe.toml")).train
    assert train.optimizer.model_dump() == {"type": "adam", "lr": 0.002, "beta1": 0.9, "beta2": 0.98, "epsilon": 1e-9}
    assert train.schedule.model_dump() == {"type": "constant", "warmup": 0.04}
    assert train.average.model_dump() == {"type": "none"}
    assert read_stored_recipe(tmp_path / "recipe.toml").train == train


def test_a_former_setting_that_is_given_now_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(FORMER_RECIPE)
    with pytest.raises(ConfigError, match="weight_decay has no effect with type 'adam'"):
        load_recipe(str(tmp_path / "recipe.toml"), sets=["train.optimizer.weight_decay=0.2"])


FORMER_EXTREMES = [
    ({"train": {"schedule": {"type": "stable-decay", "decay": 0}}}, r"train\.schedule\.decay=0: never decays"),
    (
        {"model": {"type": "decoder", "mixer": {"type": "bigbird", "random": 0, "seed": 3}}},
        r"model\.mixer\.seed=3: has no effect with random=0",
    ),
    ({"model": {"type": "ntm", "bits": 5}}, r"model\.bits=5: has no effect with embedding='learned'"),
]


@pytest.mark.parametrize(("settings", "message"), FORMER_EXTREMES)
def test_stored_recipes_load_with_values_that_new_ones_may_not_have(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tree = merge({"task": {"type": "copy"}, "model": {"type": "encoder-decoder"}}, settings)
    (tmp_path / "recipe.toml").write_text(tomli_w.dumps(tree))
    stored = read_stored_recipe(tmp_path / "recipe.toml")
    require_same_recipe(tmp_path, stored)
    require_effective_if_new(stored, tmp_path)  # its run resumes
    with pytest.raises(ConfigError, match=message):
        load_recipe(str(tmp_path / "recipe.toml"))
    with pytest.raises(ConfigError, match=message):
        require_effective_if_new(stored, tmp_path / "new")


def test_without_decay_the_rate_is_constant() -> None:
    stable, constant = parse(SCHEDULES["stable-decay"], {"decay": 0}), parse(SCHEDULES["constant"], {})
    fractions = [step / 200 for step in range(201)]
    assert [*map(stable.factor, fractions)] == [*map(constant.factor, fractions)]


def test_muon_without_block_matrices_is_refused_for_new_runs_only(tmp_path: Path) -> None:
    recipe = load_recipe(None, {"task": "copy", "model": "seq2seq", "train": {"optimizer": "muon"}})
    with pytest.raises(ConfigError, match="this model has none; use adamw"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "recipe.toml").touch()
    require_buildable(recipe, tmp_path)
    assert len(recipe.train.optimizer.build(recipe.model.build(Sizes(8, 8, shared=True))).all) == 1


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["schedule.decay=0.2", "schedule.type=constant"], "decay has no effect with type 'constant'"),
        (["schedule.type=constant", "schedule.decay=0.2"], "decay has no effect with type 'constant'"),
        (["schedule.decay=0.2", "schedule=constant"], "decay has no effect with type 'constant'"),
        (["clip=3", "clip.norm=3"], r"setting train\.clip\.norm=3: another setting gives clip as 3, not as a table"),
        (["budget.steps=2", "budget.tokens=500"], r"train\.budget: given as steps=2 and as tokens=500; give one"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe("numbers-en-de", sets=[f"train.{pair}" for pair in sets])


def test_the_order_of_settings_does_not_matter() -> None:
    sets = ["train.optimizer.weight_decay=0.1", "train.optimizer.type=adamw"]
    first, second = (load_recipe("numbers-en-de", sets=order) for order in (sets, sets[::-1]))
    assert first == second
    assert first.train.optimizer.decay == 0.1


def test_an_unknown_metric_is_refused_before_training(tmp_path: Path) -> None:
    sets = ["task.valid=4", "task.test=4", "model.width=16", "model.hidden=16", "train.metric=nonsense"]
    with pytest.raises(ConfigError, match=r"train\.metric: the task has no score 'nonsense'"):
        train(load_recipe("copy", sets=sets), tmp_path)
    assert not (tmp_path / "recipe.toml").exists()


def test_a_budget_is_given_once() -> None:
    with pytest.raises(ConfigError, match=r"train\.budget: given as steps=2 and as tokens=500"):
        load_recipe("numbers-en-de", {"train": {"budget": {"steps": 2}}}, ["train.budget.tokens=500"])
    assert load_recipe("numbers-en-de", sets=["train.budget.tokens=500"]).train.budget.tokens == 500
