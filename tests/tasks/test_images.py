"""Images: folders, tables and idx files; what is refused; commands on names of files."""

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from allyouneed.cli import run as command
from allyouneed.config import parse
from allyouneed.errors import ConfigError, DataError
from allyouneed.serve.models import ModelOptions, open_model
from allyouneed.tasks.images import ImagesConfig
from allyouneed.text.pictures import PictureConfig, Pictures, image_text
from allyouneed.training import Recipe, train

VIT = {"type": "vit", "width": 8, "layers": 1, "hidden": 8, "size": 4, "patch": 2, "mixer": {"heads": 2}}


def write_idx(folder: Path, name: str, images: Any, labels: list[int], packed: bool = True) -> str:
    """Write images and labels as MNIST has them; return the name of the images."""
    files = {
        f"{name}-images-idx3-ubyte": struct.pack(">4I", 0x803, *images.shape) + images.tobytes(),
        f"{name}-labels-idx1-ubyte": struct.pack(">2I", 0x801, len(labels)) + bytes(labels),
    }
    for file, data in files.items():
        path = folder / (f"{file}.gz" if packed else file)
        path.write_bytes(gzip.compress(data) if packed else data)
    return str(folder / (f"{name}-images-idx3-ubyte" + (".gz" if packed else "")))


def random_images(count: int, side: int = 4) -> Any:
    return np.random.default_rng(count).integers(0, 256, (count, side, side), np.uint8)


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_with_held_out_images(tmp_path: Path, packed: bool) -> None:
    images, labels = random_images(7), [0, 1, 2, 0, 1, 2, 0]
    source = write_idx(tmp_path, "some", images, labels, packed)
    tree = {"train": source, "held_out": 2, "picture": {"size": 4}, "names": ["zero", "one", "two"], "batch": 3}
    data = parse(ImagesConfig, tree).prepare(tmp_path / "data", 0)
    assert data.codec.classes == ("one", "two", "zero")
    assert data.examples("valid") == [(image_text(images[5].ravel()), "two"), (image_text(images[6].ravel()), "zero")]
    assert data.notes == ["train: 5 images", "valid: 2 images"]
    epoch = [data.batch(0, index) for index in range(data.epoch or 0)]
    rows = sorted(row for batch in epoch for row in batch.source_BS.tolist())  # type: ignore[union-attr]
    assert rows == sorted((image.ravel().astype(int) + 4).tolist() for image in images[:5])
    with pytest.raises(ConfigError, match="test: the recipe has no such data"):
        data.examples("test")


def test_a_folder_gives_classes_in_turn_and_is_prepared_again_when_it_changes(tmp_path: Path) -> None:
    for name, count in (("a", 3), ("b", 1), ("c", 2)):
        (tmp_path / "train" / name).mkdir(parents=True)
        for number, image in enumerate(random_images(count, 6)):
            Image.fromarray(image).save(tmp_path / "train" / name / f"{number}.png")
        (tmp_path / "train" / name / "notes.txt").write_text("not an image")
    config = parse(ImagesConfig, {"train": str(tmp_path / "train"), "held_out": 2, "picture": {"size": 4}})
    assert [label for _, label in config.rows(config.train)] == ["a", "b", "c", "a", "c", "a"]
    before = config.prepare(tmp_path / "data", 0).examples("valid")
    Image.fromarray(random_images(9, 6)[8]).save(tmp_path / "train" / "a" / "2.png")
    after = config.prepare(tmp_path / "data", 0).examples("valid")
    assert before[0] == after[0]
    assert before[1] != after[1]


def bomb(path: Path, side: int) -> None:
    """Write a PNG of a few kilobytes whose header states a large square."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">2I5B", side, side, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1 << 20))))


def test_files_that_are_no_images(tmp_path: Path) -> None:
    reader = Pictures(PictureConfig(size=4))
    Image.fromarray(random_images(1, 64)[0]).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:900])
    (tmp_path / "words.png").write_text("not an image")
    (tmp_path / "code.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
    bomb(tmp_path / "large.png", 12_000)
    bomb(tmp_path / "bomb.png", 60_000)
    for name, message in (
        ("cut.png", "cannot be read as an image"),
        ("words.png", "not an image of a known format"),
        ("code.eps", "not an image of a known format"),
        ("large.png", "12,000 x 12,000 pixels; at most 134,217,728"),
        ("bomb.png", "cannot be read as an image: Image size"),  # the limit of Pillow
        ("missing.png", "no such file; this model reads images"),
        (".", "cannot be read as an image"),
        ("x" * 5000, "cannot be read as an image"),
    ):
        with pytest.raises(DataError, match=message):
            reader.read(str(tmp_path / name))
    for text in ("", "\0", image_text(np.zeros(9)), image_text(np.zeros(15)) + "x"):
        with pytest.raises(DataError):
            reader.read(text)


def test_damaged_idx_files_and_tables(tmp_path: Path) -> None:
    whole = write_idx(tmp_path, "a", random_images(3), [0, 1, 0])
    fewer = write_idx(tmp_path, "b", random_images(3), [0, 1])
    Path(cut := str(tmp_path / "c-images-idx3-ubyte")).write_bytes(gzip.decompress(Path(whole).read_bytes())[:-5])
    Path(huge := str(tmp_path / "d-images-idx3-ubyte")).write_bytes(struct.pack(">4I", 0x803, *[0xFFFFFFFF] * 3))
    for name, start in (("e", (0x801, 3)), ("f", (0x803, 3, 0, 0))):
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(f">{len(start)}I", *start) + bytes(3))
    (tmp_path / "t.tsv").write_text("one\ta.png\nno tab\n")
    (tmp_path / "empty").mkdir()
    for source, message in (
        (fewer, "3 images, but 2 labels"),
        (cut, "43 values; its header states 3 x 4 x 4"),
        (huge, "0 values; its header states 4,294,967,295 x"),
        (str(tmp_path / "e-images-idx3-ubyte"), "not an idx file of images"),
        (str(tmp_path / "f-images-idx3-ubyte"), "not an idx file of images"),
        (str(tmp_path / "t.tsv"), "line 2: should be a class, a TAB"),
        (str(tmp_path / "empty"), "should hold a folder for each class"),
        (str(tmp_path / "gone"), "no such file"),
    ):
        with pytest.raises(DataError, match=message):
            list(parse(ImagesConfig, {"train": source, "held_out": 1}).rows(source))
    with pytest.raises(DataError, match=r"class 1, but task.names has 1 names"):
        list(parse(ImagesConfig, {"train": whole, "held_out": 1, "names": ["zero"]}).rows(whole))
    with pytest.raises(DataError, match="held_out=3 should be fewer"):
        parse(ImagesConfig, {"train": whole, "held_out": 3}).prepare(tmp_path / "data", 0)


def test_commands_read_names_of_files_and_the_server_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.stack([np.full((4, 4), 230 * (n % 2) + n, np.uint8) for n in range(12)])
    source = write_idx(tmp_path, "some", images, [n % 2 for n in range(12)])
    task = {"type": "images", "train": source, "held_out": 4, "picture": {"size": 4}, "names": ["dark", "light"]}
    model = {**VIT, "positions": {"type": "learned", "max_length": 5}, "dropout": 0.0}
    settings = {"budget": {"steps": 40}, "optimizer": {"type": "adamw", "lr": 0.01}}
    train(parse(Recipe, {"task": task, "model": model, "train": settings}), tmp_path / "run")
    run, listed = str(tmp_path / "run"), tmp_path / "names.txt"
    for name, value in (("night.png", 3), ("day.png", 240)):
        Image.fromarray(np.full((9, 9, 3), value, np.uint8)).save(tmp_path / name)
    listed.write_text(f"{tmp_path}/night.png\n{tmp_path}/day.png\n")
    with listed.open() as names:
        monkeypatch.setattr("sys.stdin", names)
        assert command(["translate", run]) == 0
    assert capsys.readouterr().out == "dark\nlight\n"
    assert command(["embed", run, str(listed)]) == 0
    assert capsys.readouterr().out.count("[") == 2
    (tmp_path / "test.tsv").write_text("dark\tnight.png\nlight\tday.png\n")
    assert command(["evaluate", run, "--data", str(tmp_path / "test.tsv")]) == 0
    assert capsys.readouterr().out.startswith("accuracy = 1.0000  n:2")
    with pytest.raises(ConfigError, match="only models of texts are served"):
        open_model("a", run, None, ModelOptions())
