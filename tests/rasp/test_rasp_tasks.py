"""The tasks of RASP programs: their targets are the values that the interpreter computes."""

import pytest
import torch

from allyouneed.config import parse
from allyouneed.errors import ConfigError, DataError
from allyouneed.tasks.collate import tag_batch
from allyouneed.tasks.loss import batch_loss
from allyouneed.tasks.rasp import RaspCausalConfig, RaspConfig
from allyouneed.training import load_recipe

pytestmark = pytest.mark.no_shapes  # the interpreter is most of the work
TASK = {"program": "h = selector_width(select(tokens, tokens, ==));", "vocabulary": ["a", "b"], "lengths": [1, 4]}


def test_the_targets_of_the_task_are_values_of_the_program(tmp_path):
    data = parse(RaspConfig, TASK).prepare(tmp_path, 1)
    for source, target in data.examples("valid")[:20]:
        assert target == " ".join(str(source.count(letter)) for letter in source)
    assert data.codec.classes == ("1", "2", "3", "4")
    batch = data.batch(1, 0)
    assert batch.class_BS.shape == batch.source_BS.shape
    assert (batch.class_BS[:, 0] == -1).all(), "BOS has no class"
    assert batch.tokens == int((batch.source_BS > 3).sum())


def test_a_causal_task_counts_up_to_each_position(tmp_path):
    data = parse(RaspCausalConfig, TASK).prepare(tmp_path, 1)
    batch = data.batch(1, 0)
    for source, target in data.examples("valid"):
        assert target == " ".join(str(source[: place + 1].count(one)) for place, one in enumerate(source))
    for given, right in zip(batch.input_BT.tolist(), batch.output_BT.tolist(), strict=True):
        counts = [given[1 : place + 1].count(one) for place, one in enumerate(given[1:], start=1) if one > 3]
        assert right[1 : len(counts) + 1] == [3 + count for count in counts]


def test_words_of_several_letters(tmp_path):
    config = parse(RaspConfig, {**TASK, "vocabulary": ["one", "two"], "classes": ["1", "2", "3", "4"]})
    batch = tag_batch(config.codec(), [("one two one", "2 1 2")])
    assert batch.class_BS.tolist() == [[-1, 1, 0, 1]]
    with pytest.raises(DataError, match="'7' is not a class"):
        tag_batch(config.codec(), [("one two one", "7 1 2")])


@pytest.mark.parametrize(("task", "pool"), [({"type": "rasp", **TASK}, "mean"), ({"type": "listops"}, "none")])
def test_pool_and_task_must_fit(task, pool):
    with pytest.raises(ConfigError, match=r"model\.pool"):
        load_recipe(None, {"task": task, "model": {"type": "encoder", "pool": pool}})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"program": "x = ;"}, "program: task.program.rasp:1: mismatched input ';'"),
        ({"program": 'load "a"; x = tokens;'}, "files cannot be loaded here: a"),
        ({"program": "x = tokens;" + "#" * 200_000}, "at most 200000 characters"),
        ({"program": "x = 0;" + "for i in range(9999) { x = i + i; }\n" * 99}, "more than 200000 steps"),
        ({"lengths": [1, 2_049]}, "lengths.1: Input should be less than or equal to 2048"),
        ({"test_lengths": [1, 2_049]}, "test_lengths.1: Input should be less than or equal to 2048"),
        ({"vocabulary": [str(n) for n in range(10_001)]}, "has 10001 items; should have at most 10000"),
    ],
)
def test_an_invalid_task_is_refused(settings, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.rasp").write_text("y = tokens;")
    with pytest.raises(ConfigError) as caught:
        parse(RaspConfig, {**TASK, **settings})
    assert words in str(caught.value)


@pytest.mark.slow
def test_a_model_learns_the_task(tmp_path):
    """The loss of an untrained model falls: gradients reach every position's class."""
    data = parse(RaspConfig, TASK).prepare(tmp_path, 1)
    tree = {"task": {"type": "rasp", **TASK}, "model": {"type": "encoder", "pool": "none", "layers": 1, "width": 16}}
    settings = {"mixer": {"type": "softmax", "heads": 2}, "hidden": 32, "dropout": 0.0}
    recipe = load_recipe(None, {**tree, "model": {**tree["model"], **settings}})
    model = recipe.model.build(data.sizes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(60):
        loss = batch_loss(model, data.batch(1, step))
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
        losses.append(float(loss.total.detach()) / loss.count)
    assert losses[-1] < 0.6 * losses[0]
