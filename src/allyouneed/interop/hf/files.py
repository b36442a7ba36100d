"""Reads a folder from an untrusted source. Nothing in it is executed; only four kinds of file are opened.

    config.json, generation_config.json, tokenizer_config.json, tokenizer.json     JSON of bounded size
    model.safetensors                                                              tensors, without pickle
    model.safetensors.index.json                                                   lists the files of a sharded model
    chat_template.jinja                                                            text, run only in a sandbox

A file must be in the folder itself: names with a path and links that leave the folder are refused. Only a snapshot in
the cache of huggingface_hub (`models--ORG--NAME/snapshots/HASH`) has links to files beside it, in `../../blobs`.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allyouneed.errors import FolderError
from allyouneed.storage import LARGEST_TENSORS, TensorFile, write_tensors
from allyouneed.text.tokenizer import LARGEST_FILE

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"
TOKENIZER_CONFIG, CHAT_TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
LARGEST_CONFIG = 4 << 20  # bytes
LARGEST_SHARD = 5 * 10**9  # bytes of the tensors in one file of an export
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# Files of a tokenizer that an import keeps, so that an export can write them again.
KEPT = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "generation_config.json", "vocab.json", "merges.txt", "vocab.txt"),
    *("source.spm", "target.spm", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model"),
)
OTHER_TOKENIZER_FILES = (
    "source.spm",
    "target.spm",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)


def write_weights(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write weights as transformers does: one file, or above `LARGEST_SHARD` several and an index."""
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in tensors.items():
        if shards[-1] and sum(one.nbytes for one in shards[-1].values()) + tensor.nbytes > LARGEST_SHARD:
            shards.append({})
        shards[-1][name] = tensor
    if len(shards) == 1:
        write_tensors(folder / WEIGHTS, tensors)
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_tensors(folder / file, shard)
        places |= dict.fromkeys(shard, file)
    tree = {"metadata": {"total_size": sum(one.nbytes for one in tensors.values())}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")


class ForeignFolder:
    """A Hugging Face folder."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise FolderError(f"{path}: " + ("is a file, not a folder" if path.exists() else _not_there(path)))
        self.path = path
        self._roots = (path.resolve(), *_blobs(path))

    def has(self, name: str) -> bool:
        """Return True if the file exists."""
        return os.path.lexists(self.path / name)

    def read(self, name: str, limit: int) -> bytes:
        """Return the bytes of a file. Raise FolderError if it is too large or outside the folder."""
        with self._readable(name), open(self._open(name, limit), "rb") as file:
            return file.read(limit)

    def _open(self, name: str, limit: int) -> int:
        """Open a file of this folder."""
        where = self.path / name
        if Path(name).name != name or name in ("", ".", ".."):
            raise FolderError(f"{self.path}: {name!r} is a path, not the name of a file in this folder")
        with self._readable(name):
            if not any(where.resolve(strict=True).is_relative_to(root) for root in self._roots):
                raise FolderError(f"{where}: is a link that leaves the folder; `cp -rL` makes a folder without links")
            if not where.is_file():
                raise FolderError(f"{where}: is not a plain file")
            if where.stat().st_size > limit:
                raise FolderError(f"{where}: more than {limit:,} bytes, the maximum for this file")
            return os.open(where, os.O_RDONLY | os.O_CLOEXEC)

    @contextmanager
    def _readable(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as error:  # circular links raise RuntimeError
            reason = getattr(error, "strerror", None) or error
            raise FolderError(f"{self.path / name}: not readable: {reason}") from None

    def read_config(self) -> dict[str, Any]:
        """Return config.json. If it is missing, raise FolderError that names the folders inside that have one."""
        if not self.has(CONFIG):
            inside = [file for depth in ("snapshots/*", "*") for file in sorted(self.path.glob(f"{depth}/{CONFIG}"))]
            perhaps = f"; perhaps {inside[0].parent} is meant" if inside else ""
            raise FolderError(f"{self.path}: has no {CONFIG}; it is not a folder of Hugging Face{perhaps}")
        return self.read_json(CONFIG)

    def read_json(self, name: str, limit: int = LARGEST_CONFIG) -> dict[str, Any]:
        """Return the JSON object in a file."""
        try:
            tree = json.loads(self.read(name, limit).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            reason = "too deep" if isinstance(error, RecursionError) else str(error)
            raise FolderError(f"{self.path / name}: not JSON: {reason}") from None
        if not isinstance(tree, dict):
            raise FolderError(f"{self.path / name}: should be an object, is {type(tree).__name__}")
        return tree

    def read_tokenizer(self) -> dict[str, Any]:
        """Return tokenizer.json. If it is missing, raise FolderError with the remedy."""
        if not self.has(TOKENIZER):
            found = [name for name in OTHER_TOKENIZER_FILES if self.has(name)]
            only = f" (it has {', '.join(found)}, which only its own tokenizer reads)" if found else ""
            raise FolderError(
                f"{self.path}: has no {TOKENIZER} and no SentencePiece model{only}; "
                "a fast tokenizer of transformers writes one (AutoTokenizer.from_pretrained(...).save_pretrained)"
            )
        return self.read_json(TOKENIZER, LARGEST_FILE)

    def kept_files(self) -> dict[str, bytes]:
        """Return the files of the tokenizer as they are."""
        return {name: self.read(name, LARGEST_FILE) for name in KEPT if self.has(name)}

    def read_tensors(self) -> dict[str, Tensor]:
        """Return all tensors of the model in the type of the file, large ones mapped."""
        if self.has(INDEX) and not self.has(WEIGHTS):
            tensors = self._read_shards()
        elif self.has(WEIGHTS):
            tensors = self._map_file(WEIGHTS)
        else:
            pickled = [name for name in sorted(os.listdir(self.path)) if name.endswith(PICKLES)]
            if pickled:
                raise FolderError(
                    f"{self.path}: {pickled[0]} is a pickle, which can run code and is never opened; "
                    f"{WEIGHTS} is needed: save_pretrained of transformers writes it"
                )
            raise FolderError(f"{self.path}: has no {WEIGHTS}")
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and tensor.dtype not in FLOATS:
                raise FolderError(
                    f"{self.path}: tensor {name} is {tensor.dtype}; should be float32, float16 or bfloat16"
                )
        return tensors

    def _map_file(self, name: str) -> dict[str, Tensor]:
        file = TensorFile(self._open(name, LARGEST_TENSORS), self.path / name)
        return {name: file.map(name) for name in file.places}

    def _read_shards(self) -> dict[str, Tensor]:
        where, places = self.path / INDEX, self.read_json(INDEX, LARGEST_FILE).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
            raise FolderError(f"{where}: has no weight_map from names to files")
        tensors: dict[str, Tensor] = {}
        for file in sorted(set(places.values())):
            if not file.endswith(".safetensors"):
                raise FolderError(f"{where}: {file!r} is not a safetensors file")
            if Path(file).name == file and not self.has(file):
                raise FolderError(f"{self.path}: {file} is missing, which {INDEX} lists; copy all files of the model")
            shard = self._map_file(file)
            stated = {name for name, place in places.items() if place == file}
            for name in sorted(stated ^ shard.keys()):
                what = "is not in" if name in stated else "is in, but not stated to be in,"
                raise FolderError(f"{where}: {name} {what} {file}")
            tensors |= shard
        return tensors


def _not_there(path: Path) -> str:
    """Return what to say about a folder that does not exist, which may be the name of a model on the hub."""
    hub = re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)) and not path.parent.exists()
    download = f"; nothing is downloaded: `hf download {path} --local-dir FOLDER` does that" if hub else ""
    return f"no such folder{download}"


def _blobs(path: Path) -> tuple[Path, ...]:
    """Return the folder that links of a snapshot in the cache of huggingface_hub lead to, if this is one."""
    snapshot = path.resolve()
    blobs = snapshot.parent.parent / "blobs"
    cached = snapshot.parent.name == "snapshots" and blobs.parent.name.startswith("models--")
    return (blobs,) if cached and blobs.is_dir() and not blobs.is_symlink() else ()
