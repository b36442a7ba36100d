"""Device law: mixers, models, losses, optimizer steps and decoding work wherever their weights are.

All of it runs on `other_device.OtherDevice`. An operation that mixes devices, as CUDA would refuse it, fails here.
"""

import sys
from collections.abc import Iterator

import mixer_contracts
import pytest
import test_models
import torch
from mixer_contracts import WIDTH, Read, inputs, masks, run
from other_device import CPU, DEVICE, OtherDevice, OtherTensor, WrongDevice, move
from torch import Tensor

from allyouneed.decode import SampleConfig, SearchConfig, sample, score, search
from allyouneed.decode.running_batch import Row, RunningBatch
from allyouneed.decode.sample import uniforms
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.mixers import select_rows
from allyouneed.models import Model
from allyouneed.tasks.base import Batch
from allyouneed.tasks.loss import batch_loss
from allyouneed.training.optimizer import OPTIMIZERS

pytestmark = pytest.mark.no_shapes
every_model = pytest.mark.parametrize("case", test_models.CASES, ids=str)
generating = pytest.mark.parametrize("case", test_models.GENERATING, ids=str)


@pytest.fixture(autouse=True)
def other_device() -> Iterator[None]:
    with OtherDevice():
        yield


def test_mixing_devices_is_an_error() -> None:
    there, here = torch.ones(3, device=DEVICE), torch.ones(3)
    assert float((there + 1 + torch.tensor(2.0)).sum()) == 12
    assert there.to("cpu").add(here).device == CPU
    for wrong in (lambda: there + here, lambda: here.add_(there), lambda: there[torch.tensor([0, 1])]):
        with pytest.raises(WrongDevice, match="on the CPU"):
            wrong()
    with pytest.raises(WrongDevice, match="a generator"):
        torch.rand(3, generator=torch.Generator(), device=DEVICE)


@mixer_contracts.every_case
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_mixers(case: mixer_contracts.Case, padded: bool) -> None:
    mixer = case.build()
    move(mixer)
    x_BTD, memory_BSD = (None if x is None else there(x.detach()).requires_grad_() for x in inputs(case, B=3))
    assert x_BTD is not None
    mask = there(masks(3, 3, 4 if memory_BSD is None else 2)) if padded else None
    y_BTD, state = run(mixer, x_BTD, Read(memory_BSD, mask))
    y_BTD.square().sum().backward()  # type: ignore[no-untyped-call]
    assert y_BTD.device == DEVICE
    mixer.after_step(1000)
    if case.role == "bidirectional":
        return
    with torch.no_grad():
        for rows in ([0, 1, 2], [0, 2, 2]):
            new_BD = torch.randn(3, WIDTH, dtype=torch.float64, device=DEVICE)
            y_BD, state = mixer.advance(new_BD, state=select_rows(state, there(torch.tensor(rows))))
            assert y_BD.device == DEVICE


def there(x: Tensor) -> Tensor:
    return OtherTensor(x)


def moved(case: test_models.Case) -> Model:
    model = case.build()
    move(model)
    return model


def texts(case: test_models.Case) -> tuple[Tensor, Tensor]:
    """Sources as long as the model needs them, and targets."""
    return test_models.texts(
        S={"show-attend-tell1": 26, "show-attend-tell0": 10, "show-attend-tell2": 10}.get(str(case), 5)
    )


def batch(model: Model, case: test_models.Case) -> Batch:
    source_BS, target_BT = (there(x) for x in texts(case))
    mask_BS = torch.ones_like(source_BS, dtype=torch.bool)
    if case.name != "show-attend-tell":
        mask_BS[2, -2:] = False
    if model.kind == "encoder":
        return Batch(source_BS=source_BS, source_mask_BS=mask_BS, class_B=target_BT[:, 0] % 3)
    return Batch(source_BS, mask_BS, target_BT[:, :-1], target_BT[:, 1:])


def train_step(model: Model, case: test_models.Case) -> None:
    loss = batch_loss(model.train(), batch(model, case), 0.1)
    assert loss.total.device == DEVICE
    (loss.total + loss.beside).backward()


@every_model
def test_models_and_losses(case: test_models.Case) -> None:
    train_step(moved(case), case)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # CUDA has the fused rules, so this device must have them too.
    module = sys.modules[torch.optim.Optimizer.__module__]
    monkeypatch.setattr(module, "_get_fused_kernels_supported_devices", lambda: [DEVICE.type])
    case = test_models.Case("encoder-decoder", 0)
    model = moved(case)
    optimizers = OPTIMIZERS[name].model_validate({}).build(model)
    for _ in range(2):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        train_step(model, case)
        optimizers.step(1.0)
        assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    # A single number may be anywhere; an optimizer keeps its number of steps on the CPU.
    assert all(tensor.device == DEVICE for tensor in optimizers.tensors().values() if tensor.dim())


@generating
@pytest.mark.parametrize("optimize", [False, True], ids=["plain", "optimized"])
@pytest.mark.parametrize("beam", [1, 3])
def test_searches(case: test_models.Case, beam: int, optimize: bool) -> None:
    model, sources = moved(case), texts(case)[0].tolist()
    if optimize:
        optimize_for_inference(model)
        assert model.head.weight_VD.device == DEVICE
    found = search(model, sources, SearchConfig(beam=beam, n_best=beam, max_length=4))
    assert len(found) == len(sources)


@generating
def test_samples_and_scores(case: test_models.Case) -> None:
    model, (source_BS, target_BT) = moved(case), texts(case)
    sources, targets = source_BS.tolist(), target_BT.tolist()
    drawn = sample(model, [target[:2] for target in targets], SampleConfig(n=2, max_length=3, top_p=0.9), sources)
    assert len(drawn) == len(sources)
    assert len(score(model, list(zip(sources, targets, strict=True)))) == len(sources)


@generating
def test_running_batches(case: test_models.Case) -> None:
    model, (source_BS, _) = moved(case), texts(case)
    config = SampleConfig(max_length=4, top_k=5)
    with torch.no_grad():
        running = RunningBatch(model)
        for number, source in enumerate(source_BS.tolist()):
            running.add([Row([5], source, config, uniforms(1, number, 0), top=2)])
            if running.rows:
                running.step()
