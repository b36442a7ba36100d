"""A small folder with a manifest."""

from pathlib import Path

import torch

from allyouneed.storage import new_folder, write_tensors


def write_example(path: Path, text: str = "hello") -> Path:
    with new_folder(path) as folder:
        (folder / "a.txt").write_text(text)
        (folder / "empty").touch()
        (folder / "sub").mkdir()
        write_tensors(folder / "sub" / "x.safetensors", {"x": torch.arange(7.0), "n": torch.tensor(3)})
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def leftovers(parent: Path) -> list[str]:
    return [path.name for path in parent.iterdir() if path.name.startswith(".")]
