"""ViT: the same logits as transformers, images read as its processor reads them, tuned and exported."""

import json
from pathlib import Path
from typing import Any

import hf_folders as their
import numpy as np
import pytest
import torch
from PIL import Image

from allyouneed.config import parse
from allyouneed.errors import FolderError
from allyouneed.folder import load_folder
from allyouneed.interop.hf.export import export_folder
from allyouneed.interop.hf.load import import_folder, read_folder
from allyouneed.pipeline import load
from allyouneed.training import Recipe, train
from allyouneed.training.tuning import tuning_recipe

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
LABELS = {0: "cat", 1: "dog", 2: "tree"}


def vit(folder: Path, kind: str = "ViTForImageClassification", **more: Any) -> tuple[Path, Any, Any]:
    """Return a folder, its model and its image processor: 12 x 12 pixels in patches of 4."""
    processor = {"size": {"height": 12, "width": 12}, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.25]}
    processor |= {name: more.pop(name) for name in ("resample", "image_mean", "image_std") if name in more}
    config = their.transformers.ViTConfig(image_size=12, patch_size=4, id2label=LABELS, **SIZES, **more)
    model = getattr(their.transformers, kind)(config)
    their.write_folder(folder, model, "")
    (folder / "tokenizer.json").unlink()
    reader = their.transformers.ViTImageProcessorPil(**processor)
    reader.save_pretrained(folder)
    return folder, model, reader


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Images of several formats, modes and sizes."""
    folder, random = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    paths = [folder / name for name in ("colour.png", "photo.jpg", "wide.webp", "small.bmp", "clear.png")]
    for path, shape in zip(paths, [(20, 30, 3), (17, 9, 3), (12, 40, 3), (5, 5, 3), (12, 12, 4)], strict=True):
        Image.fromarray(random.integers(0, 256, shape, np.uint8)).save(path)
    return paths


def pixels(reader: Any, paths: list[Path]) -> torch.Tensor:
    """Return the images as transformers reads them."""
    return torch.tensor(np.stack(reader([Image.open(path).convert("RGB") for path in paths])["pixel_values"]))


@pytest.mark.parametrize("resample", range(6))
def test_images_are_read_as_there(tmp_path: Path, images: list[Path], resample: int) -> None:
    folder, _, reader = vit(tmp_path / "theirs", resample=resample)
    read = read_folder(folder)
    ids = torch.tensor(read.codec.encode_sources([str(path) for path in images]))
    values = ((ids - 4).reshape(-1, 12, 12, 3) / 255 - torch.tensor([0.4, 0.5, 0.6])) / torch.tensor([0.2, 0.3, 0.25])
    torch.testing.assert_close(values.permute(0, 3, 1, 2), pixels(reader, images).float(), rtol=0, atol=1e-5)


def test_logits_and_labels(tmp_path: Path, images: list[Path]) -> None:
    folder, theirs, reader = vit(tmp_path / "theirs")
    import_folder(folder, tmp_path / "ours")
    read = read_folder(folder)
    ids = torch.tensor(read.codec.encode_sources([str(path) for path in images]))
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
        with torch.no_grad():
            right = theirs.to(dtype)(pixels(reader, images).to(dtype)).logits
            ours = read.model.to(dtype).classify(ids)
        torch.testing.assert_close(ours, right, rtol=0, atol=tolerance if dtype is torch.float32 else 1e-6)
    found = load(tmp_path / "ours").classify(map(str, images), n_best=3)
    for ranked, logits in zip(found, right, strict=True):
        assert [answer.text for answer in ranked] == [LABELS[n] for n in logits.argsort(descending=True).tolist()]
        assert ranked[0].logprob == pytest.approx(float(logits.log_softmax(-1).max()), abs=1e-4)


def test_vectors_of_a_model_without_classes(tmp_path: Path, images: list[Path]) -> None:
    folder, theirs, reader = vit(tmp_path / "theirs", "ViTModel", hidden_act="relu", layer_norm_eps=1e-6)
    import_folder(folder, tmp_path / "ours")
    with torch.no_grad():
        right = theirs(pixels(reader, images).float())
        ids = torch.tensor(read_folder(folder).codec.encode_sources([str(path) for path in images]))
        pooled: Any = read_folder(folder).model
        torch.testing.assert_close(pooled.pooled(ids), right.pooler_output, rtol=0, atol=1e-5)
    for pool, wanted in (("cls", right.last_hidden_state[:, 0]), ("mean", right.last_hidden_state.mean(dim=1))):
        found = load(tmp_path / "ours").embed(map(str, images), pool=pool, normalize=False)  # type: ignore[arg-type]
        torch.testing.assert_close(torch.stack([one.vector_D for one in found]), wanted, rtol=0, atol=1e-5)
        assert not any(one.left_out for one in found)


def test_an_export_is_the_same_folder(tmp_path: Path, images: list[Path]) -> None:
    folder, theirs, reader = vit(tmp_path / "theirs", resample=3)
    import_folder(folder, tmp_path / "ours")
    export_folder(load_folder(tmp_path / "ours"), tmp_path / "back")
    for file in ("config.json", "preprocessor_config.json"):
        before, after = (json.loads((one / file).read_text()) for one in (folder, tmp_path / "back"))
        common = [name for name in after if name in before and name != "label2id"]  # which is null there
        assert {name: before[name] for name in common} == {name: after[name] for name in common}
    weights = [their.load_file(str(one / "model.safetensors")) for one in (folder, tmp_path / "back")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    again = their.transformers.ViTForImageClassification.from_pretrained(tmp_path / "back")
    same_reader = their.transformers.ViTImageProcessorPil.from_pretrained(tmp_path / "back")
    with torch.no_grad():
        x = pixels(reader, images).float()
        torch.testing.assert_close(again(pixels(same_reader, images).float()).logits, theirs(x).logits)
    assert again.config.id2label == LABELS


@pytest.mark.parametrize("kind", ["ViTForImageClassification", "ViTModel"])
def test_a_new_head_is_trained_on_other_images_and_exported(tmp_path: Path, kind: str) -> None:
    folder, _, _ = vit(tmp_path / "theirs", kind)
    import_folder(folder, tmp_path / "ours")
    for split, count in (("train", 6), ("valid", 2)):
        for number, colour in enumerate(("black", "white")):
            (tmp_path / split / colour).mkdir(parents=True)
            for place in range(count):
                image = np.random.default_rng(place).integers(0, 60, (15, 14, 3), np.uint8) + 190 * number
                Image.fromarray(image.astype(np.uint8)).save(tmp_path / split / colour / f"{place}.png")
    given = {"task": {"train": str(tmp_path / "train"), "valid": str(tmp_path / "valid"), "batch": 4}}
    tree = tuning_recipe(str(tmp_path / "ours"), None, given)
    tree["train"] = {"budget": {"steps": 12}, "optimizer": {"type": "adamw", "lr": 3e-3}}
    train(parse(Recipe, tree), tmp_path / "run")
    tuned = load(tmp_path / "run")
    paths = [tmp_path / "valid" / colour / "1.png" for colour in ("black", "white")]
    assert tuned.classify(map(str, paths)) == ["black", "white"]
    export_folder(load_folder(tmp_path / "run"), tmp_path / "back")
    again = their.transformers.ViTForImageClassification.from_pretrained(tmp_path / "back")
    reader = their.transformers.ViTImageProcessorPil.from_pretrained(tmp_path / "back")
    with torch.no_grad():
        right = again(pixels(reader, paths).float()).logits.log_softmax(-1)
    for answers, row in zip(tuned.classify(map(str, paths), n_best=2), right, strict=True):
        assert answers[0].logprob == pytest.approx(float(row.max()), abs=1e-4)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"qkv_bias": False}, "qkv_bias: False; only True is supported"),
        ("config.json", {"image_size": [12, 24]}, "image_size: .* should be the side of a square"),
        ("config.json", {"patch_size": 5}, "patch_size: 5 does not divide image_size: 12"),
        ("config.json", {"architectures": ["ViTForMaskedImageModeling"]}, "should name one of ViTForImageClassif"),
        ("config.json", {"use_register_tokens": 4}, "unsupported fields: use_register_tokens"),
        ("config.json", {"model_type": "deit"}, "'deit' is not supported; supported: bart, .*, vit"),
        ("preprocessor_config.json", {"do_center_crop": True}, "do_center_crop: True; only False is supported"),
        ("preprocessor_config.json", {"size": {"shortest_edge": 12}}, "size: .* should be the same square"),
        ("preprocessor_config.json", {"size": 14}, "size: 14, but image_size of config.json is 12"),
        ("preprocessor_config.json", {"image_std": [0.5, 0, 0.5]}, "image_std: .* should be above 0"),
        ("preprocessor_config.json", {"resample": 9}, "resample: 9; should be an integer from 0 to 5"),
        ("preprocessor_config.json", {"image_processor_type": "CLIPImageProcessor"}, "image_processor_type: 'CLIP"),
        ("preprocessor_config.json", {"mosaic": 1}, "unsupported fields: mosaic"),
    ],
)
def test_variants_are_refused_by_name(tmp_path: Path, file: str, change: dict[str, Any], message: str) -> None:
    folder, _, _ = vit(tmp_path / "theirs")
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FolderError, match=message):
        read_folder(folder)
