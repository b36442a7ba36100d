"""Several adapters on one base: the server holds the weights once, and each model answers as the merged one."""

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import pytest
import torch
from serve_folders import running, translator
from torch import Tensor

from allyouneed import load
from allyouneed.adapter import A, AdapterConfig, B, save_adapter
from allyouneed.errors import ConfigError, FolderError
from allyouneed.folder import load_folder
from allyouneed.kernels.products import PANEL
from allyouneed.serve.backend import Backend
from allyouneed.serve.models import Served
from allyouneed.serve.setup import Source

TEXTS = ["forty one", "nine hundred and six", "two"]
RANK = 2


def make_adapter(base: Path, folder: Path, seed: int, pattern: str = ".blocks.", rank: int = RANK) -> Path:
    """Write a random adapter of the matrices whose names contain a pattern."""
    torch.manual_seed(seed)
    bundle, tensors = load_folder(base), dict[str, Tensor]()
    for name, weight in bundle.model.named_parameters():
        if weight.ndim == 2 and pattern in name:
            tensors |= {name + A: torch.randn(RANK, weight.shape[1]), name + B: torch.randn(len(weight), RANK) / 4}
    save_adapter(folder, AdapterConfig(base=bundle.sha256, folder=str(base), rank=rank, alpha=3.0), tensors)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return translator(tmp_path_factory.mktemp("base"), "numbers", target="it")


@pytest.fixture(scope="module")
def adapters(base: Path) -> dict[str, Path]:
    return {name: make_adapter(base, base.parent / name, seed) for seed, name in enumerate(("law", "news", "web"))}


@pytest.fixture(scope="module")
def served(base: Path, adapters: dict[str, Path]) -> dict[str, Served]:
    named = [f"{name}={folder}" for name, folder in adapters.items()]
    setup = Source(models=[f"plain={base}"], adapters=named).read()
    return {name: setup.open(name) for name in setup.models}


@pytest.fixture(scope="module")
def server(served: dict[str, Served]) -> Iterator[tuple[str, Backend]]:
    with running([], models=served) as found:
        yield found


def tensors_of(models: list[Served]) -> dict[int, int]:
    """Return the bytes of all tensors that some models refer to, by address."""
    seen, found = set[int](), dict[int, int]()
    waiting: list[object] = [one.bundle.model for one in models]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type) or hasattr(one, "__code__") or type(one).__name__ == "module":
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            size = min(one.numel() * one.element_size(), one.untyped_storage().nbytes())  # a released one is a number
            found[one.data_ptr()] = max(size, found.get(one.data_ptr(), 0))
        elif not isinstance(one, str | bytes | int | float):
            waiting += gc.get_referents(one)
    return found


def test_requests_choose_an_adapter_and_get_the_output_of_the_merged_model(
    base: Path, adapters: dict[str, Path], server: tuple[str, Backend]
) -> None:
    right = {name: load(base, adapter=folder).translate(TEXTS) for name, folder in adapters.items()}
    right["plain"] = load(base).translate(TEXTS)
    assert len({tuple(texts) for texts in right.values()}) == 4

    def ask(name: str) -> list[str]:
        answer = httpx.post(f"{server[0]}/translate", json={"q": TEXTS, "source": "en", "target": "it", "model": name})
        assert answer.status_code == 200, answer.text
        return list(answer.json()["translatedText"])

    with ThreadPoolExecutor(4) as pool:  # several models at once
        for name, found in zip(right, pool.map(ask, right), strict=True):
            assert found == right[name]
    unknown = httpx.post(f"{server[0]}/translate", json={"q": "two", "source": "en", "target": "it", "model": "lam"})
    assert unknown.status_code == 404
    assert "did you mean 'law'" in unknown.json()["error"]
    listed = {one["id"] for one in httpx.get(f"{server[0]}/v1/models").json()["data"]}
    assert listed == {"plain", "law", "news", "web"}


def test_adapters_take_the_memory_of_one_base_and_of_small_matrices(served: dict[str, Served]) -> None:
    for one in served.values():
        one.bundle.translate(TEXTS)  # type: ignore[attr-defined]  # what is packed on first use is packed now
    alone, together = tensors_of([served["plain"]]), tensors_of(list(served.values()))
    matrices = [
        one for name, one in served["law"].bundle.model.named_parameters() if one.ndim == 2 and "blocks" in name
    ]
    # A and B as they are, and packed: A in panels of outputs, with a bias.
    numbers = sum(2 * RANK * sum(one.shape) + PANEL * one.shape[1] + PANEL for one in matrices)
    small = sum(one.numel() * one.element_size() for one in served["plain"].bundle.model.buffers())
    assert sum(together.values()) <= sum(alone.values()) + 3 * (4 * numbers + small)
    assert alone.keys() <= together.keys()
    assert served["law"].base is served["web"].base is served["plain"].bundle


def test_a_reload_notices_another_adapter_and_keeps_the_base(base: Path, tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text(f'[models]\none = {{ folder = "{base}", adapter = "adapter" }}\n')
    make_adapter(base, tmp_path / "adapter", seed=7)
    setup = Source(file=str(tmp_path / "serve.toml")).read()
    before = setup.open("one")
    current = [before.is_current]
    make_adapter(base, tmp_path / "adapter", seed=8)
    current.append(before.is_current)
    assert current == [True, False]
    after = setup.open("one")
    assert after.base is before.base
    assert after.bundle.sha256 != before.bundle.sha256


def test_an_adapter_of_other_matrices_is_merged(base: Path, tmp_path: Path) -> None:
    folder = make_adapter(base, tmp_path / "tables", seed=5, pattern="weight_VD")
    setup = Source(models=[str(base)], adapters=[f"tables={folder}"]).read()
    served = setup.open("tables")
    assert served.base is None  # it has weights of its own
    assert served.bundle.translate(TEXTS) == load(base, adapter=folder).translate(TEXTS)  # type: ignore[attr-defined]


def test_an_adapter_whose_rank_is_another_is_refused(base: Path, tmp_path: Path) -> None:
    """The product of its matrices would be divided by a wrong number."""
    folder = make_adapter(base, tmp_path / "four", seed=5, rank=4)
    with pytest.raises(FolderError, match=r"A has 2 rows, .* but the rank is 4"):
        load(base, adapter=folder)


def test_adapters_on_the_command_line_need_their_base(
    base: Path, adapters: dict[str, Path], folders: list[Path]
) -> None:
    with pytest.raises(ConfigError, match="which is not among the models; serve that model, too"):
        Source(models=[str(folders[1])], adapters=[str(adapters["law"])]).read()
    with pytest.raises(ConfigError, match="a model named 'law' is already served"):
        Source(models=[f"law={base}"], adapters=[str(adapters["law"])]).read()
