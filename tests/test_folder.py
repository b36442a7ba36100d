"""Model folders round-trip bit for bit; everything that is not a model folder is refused in one line."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

import allyouneed
from allyouneed.config import Config
from allyouneed.errors import FolderError
from allyouneed.folder import add_shortlist, load_folder, save_folder
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.mixers.xl import XLConfig
from allyouneed.models import MODELS, Model
from allyouneed.models.decoder import DecoderConfig
from allyouneed.positions import NoPositionConfig
from allyouneed.shortlist.table import Shortlist
from allyouneed.sizes import Sizes
from allyouneed.storage import new_folder
from allyouneed.text.codec import Codec
from allyouneed.text.tokenizer import of_symbols
from allyouneed.weights import fill_model, model_tensors

CHARACTERS = of_symbols("abc", "characters")
WORDS = of_symbols(["ein", "zwei", "drei"], "words")


class ExampleTask(Config):
    type: Literal["example"] = "example"
    length: int = 3
    file: Path = Path("data/x.txt")


def build(kind: str, sizes: Sizes, **fields: Any) -> Model:
    layers = {"encoder_layers": 1, "decoder_layers": 2} if kind == "encoder-decoder" else {"layers": 2}
    config = MODELS[kind](width=6, hidden=10, mixer=SoftmaxConfig(heads=3), **layers, **fields)  # type: ignore[call-arg]
    return config.build(sizes)


def example(path: Path) -> Path:
    model = build("encoder-decoder", Sizes(CHARACTERS.size, CHARACTERS.size, shared=True))
    return save_folder(path, model, Codec(CHARACTERS, CHARACTERS), ExampleTask(), "# A card\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example(tmp_path_factory.mktemp("folder") / "model")


def rewrite(folder: Path, change: Callable[[Path], object]) -> Path:
    """Change a folder and rewrite its manifest to match, as an attacker would."""
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    (copy / "manifest.json").unlink()
    with new_folder(folder) as temporary:
        shutil.copytree(copy, temporary, dirs_exist_ok=True)
        change(temporary)
    shutil.rmtree(copy)
    return folder


def edit_config(**fields: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        tree = json.loads((folder / "config.json").read_text())
        for name, value in fields.items():
            *parents, last = name.split("__")
            node = tree
            for parent in parents:
                node = node[parent]
            node[last] = value
        (folder / "config.json").write_text(json.dumps(tree))

    return change


def edit_tensors(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return edit


def refused(path: Path, message: str) -> None:
    with pytest.raises(FolderError, match=message) as caught:
        load_folder(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_round_trip_of_a_translator(tmp_path: Path, tied: bool, shared: bool) -> None:
    target = CHARACTERS if shared else WORDS
    model = build("encoder-decoder", Sizes(CHARACTERS.size, target.size, shared), tied=tied)
    path = save_folder(tmp_path / "model", model, Codec(CHARACTERS, target), ExampleTask(length=5), "# A card\n")
    before = torch.get_rng_state()
    bundle = load_folder(str(path))
    assert torch.equal(torch.get_rng_state(), before)
    assert not bundle.model.training
    assert bundle.model.config == model.config
    assert bundle.recipe == {"type": "example", "length": 5, "file": "data/x.txt"}
    assert (bundle.card, bundle.version) == ("# A card\n", allyouneed.__version__)
    assert bundle.codec.encode_source("cab") == Codec(CHARACTERS, target).encode_source("cab")
    ours, theirs = model_tensors(model), model_tensors(bundle.model)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (bundle.model.head.weight_VD is bundle.model.target.weight_VD) == tied
    assert (bundle.model.head.weight_VD is bundle.model.source.weight_VD) == (tied and shared)
    assert len(ours) == len(list(model.parameters()))
    source, tokens = torch.tensor([[4, 5, 6, 2]]), torch.tensor([[1, 4]])
    model.eval()
    one, _ = model.step(tokens, model.condition(source))
    two, _ = bundle.model.step(tokens, bundle.model.condition(source))
    assert torch.equal(one, two)


def test_round_trip_of_a_language_model_and_a_classifier(tmp_path: Path) -> None:
    model = build("decoder", Sizes(0, CHARACTERS.size))
    path = save_folder(tmp_path / "language", model, Codec(target=CHARACTERS), ExampleTask(), "")
    assert load_folder(path).codec.source is None
    model = build("encoder", Sizes(CHARACTERS.size, 2))
    path = save_folder(tmp_path / "classes", model, Codec(CHARACTERS, classes=("no", "yes")), ExampleTask(), "")
    assert load_folder(path).codec.classes == ("no", "yes")


def test_settings_outside_the_weights_may_be_changed(tmp_path: Path) -> None:
    config = DecoderConfig(
        width=6, hidden=10, layers=2, mixer=XLConfig(heads=3, memory=4), positions=NoPositionConfig()
    )
    model = config.build(Sizes(0, CHARACTERS.size))
    save_folder(tmp_path / "m", model, Codec(None, CHARACTERS), ExampleTask(), "")
    longer = load_folder(tmp_path / "m", sets=["model.mixer.memory=9", "length=5"])
    assert longer.model.config.mixer == XLConfig(heads=3, memory=9)  # type: ignore[union-attr]
    assert longer.recipe["length"] == 5
    for name, tensor in model_tensors(model).items():
        assert torch.equal(tensor, model_tensors(longer.model)[name])
    with pytest.raises(FolderError, match="tensor decoder"):
        load_folder(tmp_path / "m", sets=["model.layers=3"])
    with pytest.raises(FolderError, match="did you mean 'memory'"):
        load_folder(tmp_path / "m", sets=["model.mixer.memroy=3"])


def test_a_folder_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    first = load_folder(example(tmp_path / "model"))
    second = load_folder(example(tmp_path / "model"))
    assert not torch.equal(first.model.head.weight_VD, second.model.head.weight_VD)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_run_folder_loads_its_model(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    refused(run, "run: a run of an earlier version, not finished")
    example(run / "model")
    assert load_folder(run).path == run / "model"


def test_folders_that_are_not_models_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none", "none: no such folder")
    refused(tmp_path, "not a model folder")
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", "is a file, not a folder")
    with new_folder(tmp_path / "other") as folder:
        (folder / "x").write_text("x")
    refused(tmp_path / "other", r"other: has no config\.json; it is not a model folder")


@given(data=st.data())
@pytest.mark.no_shapes
def test_one_changed_bit_in_any_file_is_refused(folder: Path, data: st.DataObject) -> None:
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        changed = bytearray(content)
        where = data.draw(st.integers(0, len(content) - 1), label=f"byte of {path.name}")
        changed[where] ^= 1 << data.draw(st.integers(0, 7), label="bit")
        try:
            path.write_bytes(changed)
            refused(folder, "model")
        finally:
            path.write_bytes(content)


def test_missing_linked_and_added_files_are_refused(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json", "codec.json", "README.md"):
        path = example(tmp_path / name / "model")
        (path / name).rename(tmp_path / "elsewhere")
        refused(path, f"{name} is missing")
        (path / name).symlink_to(tmp_path / "elsewhere")
        refused(path, f"{name}: is a link")
    path = example(tmp_path / "model")
    (path / "modeling.py").write_text("import os")
    refused(path, r"modeling\.py: is not in the manifest")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit_config(model__type="os.system"), r"config\.json: model: unknown name 'os\.system'; known: .*, decoder,"),
        (edit_config(model__type="encoder-decodr"), "did you mean 'encoder-decoder'"),
        (edit_config(model__code="evil.py"), r"config\.json: model: unknown name 'code'"),
        (edit_config(auto_map={"AutoModel": "x.py"}), r"config\.json: unknown name 'auto_map'"),
        (edit_config(format=2), "format 2; allyouneed .* reads format 1: is the folder newer"),
        (edit_config(format=None), "format None"),
        (edit_config(model__width=7), "not divisible"),
        (edit_config(model__width=3 * 10**12), r"config\.json: the model is far larger than the weights"),
        (edit_config(model__width=3 * 10**30), "far larger than the weights"),
        (edit_config(model__decoder_layers=10**12), "far larger than the weights"),
        (edit_config(sizes__target=1 << 28), "far larger than the weights"),
        (edit_config(model__width=9), r"shape 7 x 6, the model needs 7 x 9"),
        (edit_config(model__positions={"type": "rotary", "base": float("nan")}), r"config\.json"),
        (edit_config(model__decoder_layers=3), r"tensor decoder\.blocks\.2\S* is missing"),
        (edit_config(model__decoder_layers=1), r"tensor decoder\.blocks\.1\S* is not part of this model"),
        (edit_config(sizes__target=5), "shape"),
        (edit_config(sizes__target=-5), "sizes.target"),
        (edit_config(sizes={"source": 3}), "sizes.target: is missing"),
        (edit_config(recipe=[]), "recipe"),
        (lambda folder: (folder / "config.json").write_text("[]"), "is not the config of a model"),
        (lambda folder: (folder / "config.json").write_text("[" * 10**5), "not JSON"),
        (lambda folder: (folder / "config.json").write_text("x"), "not JSON"),
        (lambda folder: (folder / "config.json").write_bytes(b"\xff"), "not JSON"),
        (lambda folder: (folder / "README.md").write_bytes(b"\xff"), "not UTF-8"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x80\x04."), "not a safetensors file"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "not a tokeniser"),
        (lambda folder: (folder / "codec.json").unlink(), r"codec\.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"has no model\.safetensors"),
        (edit_tensors(lambda tensors: tensors.popitem()), "is missing"),
        (edit_tensors(lambda tensors: tensors.update(extra=torch.ones(1))), "tensor extra is not part of this model"),
        (
            edit_tensors(lambda tensors: tensors.update({name: x.double() for name, x in tensors.items()})),
            r"tensor \S+ has dtype torch\.float64, the model needs torch\.float32",
        ),
        (
            edit_tensors(lambda tensors: tensors.update({name: x.flatten()[:1] for name, x in tensors.items()})),
            r"tensor \S+ has shape 1, the model needs",
        ),
        (
            lambda folder: (folder / "tokenizer.json").write_text(of_symbols("abcdefgh", "characters").to_json()),
            "source: 12 ids, but the model's table has 7 rows",
        ),
    ],
)
def test_a_forged_folder_is_refused(tmp_path: Path, change: Callable[[Path], object], message: str) -> None:
    refused(rewrite(example(tmp_path / "model"), change), message)


def test_persistent_buffers_are_kept_and_others_are_not() -> None:
    model = torch.nn.Module()
    model.register_buffer("kept", torch.ones(2))
    model.register_buffer("made", torch.ones(2), persistent=False)
    model.weight = torch.nn.Parameter(torch.zeros(3))
    model.again = model.weight
    assert list(model_tensors(model)) == ["weight", "kept"]
    fill_model(model, {"weight": torch.ones(3), "kept": torch.zeros(2)}, Path("here"))
    assert model.again.tolist() == [1, 1, 1]
    assert model.kept.tolist() == [0, 0]
    with pytest.raises(FolderError, match="here: tensor kept is missing"):
        fill_model(model, {"weight": torch.ones(3)}, Path("here"))


def a_shortlist(sources: int = CHARACTERS.size) -> Shortlist:
    return Shortlist(torch.arange(4), torch.tensor([4, 5, 6]), torch.tensor([0] * (sources - 2) + [2, 3]))


def test_adding_a_shortlist_leaves_other_files_unchanged(tmp_path: Path) -> None:
    path = example(tmp_path / "model")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    assert load_folder(path).shortlist is None
    for _ in range(2):  # the second replaces the first
        add_shortlist(load_folder(path), a_shortlist())
        listed = load_folder(path).shortlist
        assert listed is not None
        written = hashlib.sha256((path / "shortlist.safetensors").read_bytes()).hexdigest()
        assert listed.signature == f"shortlist:2+0:{written[:8]}"
        assert [listed.of(word) for word in range(CHARACTERS.size)] == [[], [], [], [], [], [4, 5], [6]]
    after = {file.name: file.read_bytes() for file in path.iterdir()}
    assert after.keys() - before.keys() == {"shortlist.safetensors"}
    assert {name for name in before if after[name] != before[name]} == {"manifest.json"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_shortlist_is_not_added_to_a_damaged_folder(tmp_path: Path) -> None:
    path = example(tmp_path / "model")
    bundle, weights = load_folder(path), path / "model.safetensors"
    damaged = bytes([*weights.read_bytes()[:-1], weights.read_bytes()[-1] ^ 1])
    weights.write_bytes(damaged)
    with pytest.raises(FolderError, match="changed since it was written"):
        add_shortlist(bundle, a_shortlist())
    assert not (path / "shortlist.safetensors").exists()
    assert weights.read_bytes() == damaged
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_shortlist_is_not_added_to_another_model(tmp_path: Path) -> None:
    path = example(tmp_path / "model")
    bundle = load_folder(path)
    for name in ("model.safetensors", "tokenizer.json", "codec.json"):
        data = (path / name).read_bytes()
        rewrite(path, lambda folder, name=name, data=data: (folder / name).write_bytes(data + b" "))
        with pytest.raises(FolderError, match=rf"{name}: changed since the model was loaded; make the shortlist again"):
            add_shortlist(bundle, a_shortlist())
        rewrite(path, lambda folder, name=name, data=data: (folder / name).write_bytes(data))
    add_shortlist(bundle, a_shortlist())


def test_a_private_folder_stays_private(tmp_path: Path) -> None:
    path = example(tmp_path / "model")
    for file in path.iterdir():
        file.chmod(0o640)
    path.chmod(0o750)
    (path / "README.md").chmod(0o600)
    add_shortlist(load_folder(path), a_shortlist())
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.iterdir()}
    assert path.stat().st_mode & 0o777 == 0o750
    assert modes.pop("README.md") == 0o600
    assert set(modes.values()) == {0o640}
    assert {"shortlist.safetensors", "manifest.json"} <= modes.keys()


def test_a_shortlist_that_does_not_fit_its_model_is_refused(tmp_path: Path) -> None:
    path = example(tmp_path / "model")
    bundle = load_folder(path)
    add_shortlist(bundle, a_shortlist(CHARACTERS.size + 1))
    refused(path, r"shortlist\.safetensors: for 8 source words, but the model has 7; make it again")
    add_shortlist(bundle, Shortlist(torch.arange(4), torch.tensor([4, 5, 7]), a_shortlist().ends))
    refused(path, r"shortlist\.safetensors: words holds ids that are not among the 7 target words")
    refused(
        rewrite(path, lambda folder: (folder / "shortlist.safetensors").write_bytes(b"x")), "not a safetensors file"
    )
    model = build("decoder", Sizes(0, CHARACTERS.size))
    path = save_folder(tmp_path / "lm", model, Codec(target=CHARACTERS), ExampleTask(), "")
    add_shortlist(load_folder(path), a_shortlist())
    refused(path, r"shortlist\.safetensors: a shortlist, but the model does not translate")


def test_one_changed_bit_of_a_shortlist_is_refused(tmp_path: Path) -> None:
    path = example(tmp_path / "model")
    add_shortlist(load_folder(path), a_shortlist())
    data = bytearray((path / "shortlist.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "shortlist.safetensors").write_bytes(data)
    refused(path, r"shortlist\.safetensors: changed since it was written")
