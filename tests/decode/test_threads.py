"""Batches on several cores: results, order, failures. Single batches: their steps run on one core."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from decode_models import make_model

from allyouneed import kernels
from allyouneed.config import parse
from allyouneed.decode import SampleConfig, SearchConfig, sample, score, search, stream
from allyouneed.decode.running_batch import Row, RunningBatch
from allyouneed.decode.sample import uniforms
from allyouneed.decode.threads import kernel_threads, run_concurrently
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.models import Model
from allyouneed.training import Recipe
from allyouneed.training.evaluate import Measurement, held_out_loss

CPU = torch.device("cpu")
SAMPLE = SampleConfig(temperature=0, max_length=5)


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


class Watch:
    """Notes OpenMP's number of threads, and the Python thread, in each call of a model's method."""

    def __init__(self, model: Any, *methods: str) -> None:
        self.threads, self.callers = set[int](), set[int]()
        for method in methods:
            setattr(model, method, self._watched(getattr(model, method)))

    def _watched(self, call: Any) -> Any:
        def watched(*arguments: Any, **more: Any) -> Any:
            self.threads.add(torch.get_num_threads())
            self.callers.add(threading.get_ident())
            return call(*arguments, **more)

        return watched


def test_batches_are_taken_as_they_are_needed() -> None:
    taken = []

    def batches() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    running = run_concurrently(lambda number: number * number, batches(), CPU)
    first = next(running)
    assert len(taken) < 20
    rest = list(running)
    assert sorted([first, *rest]) == [(number, number * number) for number in range(100)]
    assert torch.get_num_threads() == 2
    assert list(run_concurrently(lambda number: number, [], CPU)) == []


def test_a_failing_batch_ends_the_others_and_restores_the_threads() -> None:
    def work(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    with pytest.raises(ValueError, match="three"):
        list(run_concurrently(work, range(100), CPU))
    assert torch.get_num_threads() == 2


def held_out(folder: Path) -> tuple[Model, Any]:
    task = {"type": "numbers", "pairs": 200, "valid": 60, "test": 20, "batch_tokens": 100, "max_length": 100}
    mixer = {"type": "softmax", "heads": 2}
    model = {"type": "encoder-decoder", "width": 16, "hidden": 32, "encoder_layers": 1, "decoder_layers": 1}
    recipe = parse(Recipe, {"task": task, "model": model | {"mixer": mixer}})
    data = recipe.task.prepare(folder, 0)
    return recipe.model.build(data.sizes), data


def test_an_evaluation_runs_batches_on_one_core_each_and_its_loss_does_not_depend_on_them(tmp_path: Path) -> None:
    model, data = held_out(tmp_path)
    torch.set_num_threads(1)
    alone = held_out_loss(model, data, "valid")
    torch.set_num_threads(2)
    watch = Watch(model, "hidden")
    together = held_out_loss(model, data, "valid")
    assert [score.value for score in together] == [score.value for score in alone]
    assert watch.threads == {1}
    assert threading.get_ident() not in watch.callers
    assert torch.get_num_threads() == 2


def test_an_interrupted_evaluation_restores_the_threads(tmp_path: Path) -> None:
    model, data = held_out(tmp_path)

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        Measurement(model, data, "valid", progress=stop).extend()
    assert torch.get_num_threads() == 2  # although the traceback still holds the frames
    assert stopped.traceback


def test_scores_and_samples_run_batches_on_one_core_each() -> None:
    model = make_model("decoder", 11)
    pairs = [([3, 4], [5, 6, 7 + number % 3]) for number in range(9)]
    prompts = [target for _, target in pairs]
    config = SampleConfig(max_length=5, seed=3)
    torch.set_num_threads(1)
    alone = score(model, pairs), sample(model, prompts, config)
    torch.set_num_threads(2)
    watch = Watch(model, "hidden", "advance")
    together = score(model, pairs), sample(model, prompts, config)
    assert [one.token_logprobs for one in together[0]] == [pytest.approx(one.token_logprobs) for one in alone[0]]
    assert [[h.ids for h in found] for found in together[1]] == [[h.ids for h in found] for found in alone[1]]
    assert watch.threads == {1}


def optimized() -> Model:
    model = make_model("decoder", 11).float()
    optimize_for_inference(model)
    with torch.no_grad():
        if not kernels.usable(model.head.weight_VD):
            pytest.skip("no C compiler")
    return model


def test_steps_of_one_batch_run_on_one_core_where_kernels_compute_them() -> None:
    model = optimized()
    watch = Watch(model, "hidden", "advance")
    assert list(stream(model, [3, 4], SAMPLE))
    assert watch.threads == {1}
    watch = Watch(model, "advance")
    search(model, [[3, 4, 5]], SearchConfig(beam=2, max_length=6))
    search(model, [[3, 4, 5]], SearchConfig(beam=1, max_length=6))
    sample(model, [[3, 4]], SAMPLE)
    assert 1 in watch.threads
    batch = RunningBatch(model)
    batch.add([Row([3], None, SAMPLE, uniforms(0, 0, 0))])
    watch = Watch(model, "advance")
    batch.step()
    assert watch.threads == {1}
    assert torch.get_num_threads() == 2


def test_plain_models_and_many_rows_keep_all_threads() -> None:
    with torch.inference_mode(), kernel_threads(make_model("decoder", 11), 1):
        assert torch.get_num_threads() == 2
    with torch.inference_mode(), kernel_threads(optimized(), 10_000):
        assert torch.get_num_threads() == 2
