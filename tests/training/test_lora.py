"""LoRA and freezing: the paper's equation by a loop, gradients by autograd, adapters alone and merged, resumption."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tuning_runs import OTHER, command, refused, write_labels, write_pairs

from allyouneed import load
from allyouneed.cli import run
from allyouneed.folder import load_folder
from allyouneed.models.decoder import DecoderConfig
from allyouneed.pipeline import Pipeline
from allyouneed.serve.setup import Source
from allyouneed.sizes import Sizes
from allyouneed.storage import verify
from allyouneed.training.checkpoint import Checkpoints
from allyouneed.training.lora import Lora, LoraConfig
from allyouneed.weights import model_tensors

Capture = pytest.CaptureFixture[str]
ALONE = ["--set", "train.schedule.type=constant", "--set", "train.schedule.warmup=0"]
LORA = [*ALONE, "--set", "train.lora.rank=2", "--set", "train.lora.alpha=6", "--set", "train.optimizer.lr=0.02"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lora")


@pytest.fixture(scope="module")
def data(folder: Path) -> list[str]:
    files = write_pairs(folder, "other", OTHER)
    return ["--train", files[0], "--train", files[1], "--valid", files[0], "--valid", files[1]]


@pytest.fixture(scope="module")
def adapted(folder: Path, translator: str, data: list[str]) -> Path:
    arguments = ["train", "--from", translator, *data, *LORA, "--steps", "4", "--out", str(folder / "adapted")]
    assert run(arguments) == 0
    return folder / "adapted"


def small_model() -> torch.nn.Module:
    torch.manual_seed(3)
    mixer = {"type": "softmax", "heads": 2}
    settings = {"width": 12, "hidden": 20, "layers": 1, "mixer": mixer, "dropout": 0.0}
    return DecoderConfig.model_validate(settings).build(Sizes(11, 11, shared=True)).double()


def test_a_merged_matrix_is_the_papers_equation() -> None:
    """h = W x + (alpha / r) B A x, element by element."""
    model = small_model()
    lora = Lora(model, LoraConfig(rank=3, alpha=5.0))  # type: ignore[arg-type]
    name = next(name for name, _ in lora.named_parameters()).removesuffix(".lora_a")
    base_ND = model_tensors(model)[name].clone()
    thin = {key: parameter.data for key, parameter in lora.named_parameters()}
    assert all(torch.equal(tensor, torch.zeros_like(tensor)) for key, tensor in thin.items() if key.endswith("_b"))
    for tensor in thin.values():
        tensor.copy_(torch.randn_like(tensor))
    lora.merge()
    weight_ND, a_RD, b_NR = model_tensors(model)[name], thin[f"{name}.lora_a"], thin[f"{name}.lora_b"]
    x_D = torch.randn(base_ND.shape[1], dtype=torch.float64)
    for row in range(base_ND.shape[0]):
        right = sum(float(base_ND[row, d]) * float(x_D[d]) for d in range(len(x_D)))
        for r in range(3):
            inner = sum(float(a_RD[r, d]) * float(x_D[d]) for d in range(len(x_D)))
            right += 5.0 / 3 * float(b_NR[row, r]) * inner
        assert float(weight_ND[row] @ x_D) == pytest.approx(right, rel=1e-9)


def test_gradients_are_those_of_autograd_through_the_product() -> None:
    model = small_model()
    lora = Lora(model, LoraConfig(rank=2, alpha=3.0))  # type: ignore[arg-type]
    thin = dict(lora.named_parameters())
    for parameter in thin.values():
        parameter.data.copy_(torch.randn_like(parameter))
    base = {key.removesuffix(".lora_a"): None for key in thin if key.endswith("_a")}
    weights = {name: model_tensors(model)[name].clone() for name in base}
    lora.merge()
    ids_BT = torch.tensor([[1, 5, 7, 3], [1, 4, 4, 9]])

    def loss() -> torch.Tensor:
        decoder: torch.nn.Module = model
        return decoder.step(ids_BT, decoder.start())[0].sin().sum()  # type: ignore[operator]

    loss().backward()
    lora.take_gradients()
    found = {key: parameter.grad for key, parameter in thin.items()}
    assert all(weight.grad is None for weight in model.parameters())
    # The same loss with W + (alpha / r) B A as an expression of leaves.
    leaves = {key: parameter.data.clone().requires_grad_() for key, parameter in thin.items()}
    products = {name: weights[name] + 1.5 * leaves[f"{name}.lora_b"] @ leaves[f"{name}.lora_a"] for name in weights}
    for name, product in products.items():
        path, _, last = name.rpartition(".")
        module = model.get_submodule(path)
        del module._parameters[last]
        setattr(module, last, product)
    loss().backward()
    for key, leaf in leaves.items():
        torch.testing.assert_close(found[key], leaf.grad, rtol=1e-9, atol=1e-12)


def test_an_adapter_alone_is_small_and_merged_is_the_trained_model(
    translator: str, adapted: Path, capsys: Capture
) -> None:
    base, tuned = load_folder(translator), load_folder(adapted)
    merged = load_folder(translator, adapter=adapted)
    old, right, found = (model_tensors(one.model) for one in (base, tuned, merged))
    changed = [name for name in old if not torch.equal(old[name], right[name])]
    assert changed
    assert all(".blocks." in name for name in changed)
    for name, tensor in right.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-7)
    head = json.loads((adapted / "adapter" / "adapter.json").read_text())
    assert head["base"] == base.sha256
    assert sorted(verify(adapted / "adapter").files) == ["adapter.json", "adapter.safetensors"]
    sources = ["free games", "an old shell"]
    assert load(translator, adapter=adapted / "adapter").translate(sources) == load(adapted).translate(sources)
    command(capsys, "export", translator, "--adapter", adapted, "--to", "hf", "--out", adapted.parent / "hf")


def test_a_base_and_its_adapters_are_served_under_their_own_names(translator: str, adapted: Path) -> None:
    lines = [f"plain = {json.dumps(translator)}", f"tuned = {{ folder = {json.dumps(translator)}, adapter = "]
    lines[1] += f"{json.dumps(str(adapted))} }}"
    (adapted.parent / "serve.toml").write_text("[models]\n" + "\n".join(lines))
    setup = Source(file=str(adapted.parent / "serve.toml")).read()
    for name, folder in (("plain", translator), ("tuned", adapted)):
        served, right = setup.open(name), load(folder)
        assert isinstance(served.bundle, Pipeline)
        assert served.bundle.translate(["free games"]) == right.translate(["free games"])
    assert setup.open("plain").bundle.sha256 != setup.open("tuned").bundle.sha256


def test_a_run_with_lora_resumes_bit_by_bit(
    translator: str, adapted: Path, data: list[str], tmp_path: Path, capsys: Capture
) -> None:
    """2 steps, then 4: the same bits as 4 at once."""
    for steps in (2, 4):
        command(capsys, "train", "--from", translator, *data, *LORA, "--steps", steps, "--out", tmp_path / "parts")
    parts = []
    for folder in (adapted, tmp_path / "parts"):
        checkpoints = Checkpoints(folder)
        latest = checkpoints.latest()
        assert latest is not None
        parts.append(checkpoints.load(latest).tensors)
    for part in ("lora", "model", "optimizer"):
        assert parts[0][part].keys() == parts[1][part].keys()
        for name, tensor in parts[0][part].items():
            assert torch.equal(tensor, parts[1][part][name]), name
    assert all(".lora_" in name for name in parts[0]["optimizer"])


def test_an_adapter_is_verified(adapted: Path, tmp_path: Path, capsys: Capture) -> None:
    """Alone, and as a part of its run."""
    alone = shutil.copytree(adapted / "adapter", tmp_path / "alone")
    assert run(["verify", str(alone)]) == 0
    assert f"ok       adapter     {alone}: of rank 2, for " in capsys.readouterr().out
    assert run(["verify", str(adapted), "--no-scores"]) == 0
    assert f"ok       adapter     {adapted / 'adapter'}: of rank 2, for " in capsys.readouterr().out
    weights = alone / "adapter.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert run(["verify", str(alone)]) == 2
    assert "adapter.safetensors: changed since it was written" in capsys.readouterr().out


def test_weights_are_frozen_by_name(translator: str, data: list[str], tmp_path: Path, capsys: Capture) -> None:
    frozen = ["--set", 'train.freeze=["encoder.*", "source.*"]', "--set", "train.average=ema"]
    command(capsys, "train", "--from", translator, *data, *frozen, "--steps", 2, "--out", tmp_path / "run")
    old, new = (model_tensors(load_folder(one).model) for one in (translator, tmp_path / "run"))
    for name, tensor in old.items():
        assert torch.equal(tensor, new[name]) == name.startswith(("encoder.", "source.")), name


def test_muon_trains_matrices_alone_if_all_else_is_frozen(translator: str, data: list[str], tmp_path: Path) -> None:
    model = load_folder(Path(translator)).model
    inside = {name for name, weight in model.named_parameters() if weight.ndim == 2 and ".blocks." in name}
    others = json.dumps([name for name, _ in model.named_parameters() if name not in inside])
    settings = ["--set", "train.optimizer=muon", "--set", f"train.freeze={others}"]
    assert run(["train", "--from", translator, *data, *settings, "--steps", "2", "--out", str(tmp_path / "run")]) == 0
    old, new = (model_tensors(load_folder(one).model) for one in (Path(translator), tmp_path / "run"))
    assert {name for name in old if not torch.equal(old[name], new[name])} == inside


def test_what_lora_cannot_do_is_refused(
    folder: Path, translator: str, classifier: str, adapted: Path, data: list[str], tmp_path: Path, capsys: Capture
) -> None:
    out = ["--steps", 1, "--out", tmp_path / "run"]

    def error(*settings: str, start: str = translator, files: list[str] = data) -> str:
        return refused(capsys, "train", "--from", start, *files, *[f"--set={one}" for one in settings], *out)

    assert "train.lora.targets: no matrix is named 'head'; the model has" in error('train.lora.targets=["head"]')
    assert "train.freeze: no weight is named 'x.*'" in error('train.freeze=["x.*"]')
    assert "matches all weights; leave some" in error('train.freeze=["*"]')
    assert "train.freeze has no effect with train.lora" in error("train.lora.rank=2", 'train.freeze=["encoder.*"]')
    assert "set train.average='none'" in error("train.lora.rank=2", "train.average=ema")
    assert "train.lora trains thin ones; use adamw" in error("train.lora.rank=2", "train.optimizer=muon")
    assert "'fsdp' trains all weights" in error("train.lora.rank=2", "train.parallel=fsdp")
    labels = write_labels(tmp_path, "new.tsv", "xy")
    found = error("train.lora.rank=2", start=classifier, files=["--train", labels, "--valid", labels])
    assert "train.lora: the head is new (head.weight_VD, head.bias_V)" in found
    assert "start from one: train --from FOLDER" in refused(capsys, "train", "copy", "--set=train.lora.rank=2", *out)
    assert "belongs to another model" in refused(capsys, "score", classifier, "--adapter", adapted)
    assert "not an adapter folder" in refused(capsys, "score", translator, "--adapter", Path(translator) / "model")
    assert "a run without an adapter" in refused(capsys, "score", translator, "--adapter", translator)
    found = refused(capsys, "score", adapted / "adapter")
    assert f"is an adapter (LoRA), not a model folder; give its base, and --adapter {adapted}" in found
    damaged = shutil.copytree(adapted / "adapter", tmp_path / "damaged")
    (damaged / "adapter.json").write_text("{}")
    assert "adapter.json" in refused(capsys, "score", translator, "--adapter", damaged)
