"""Named tensors as safetensors files."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from allyouneed.errors import FolderError
from allyouneed.storage.disk import writing

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_TENSORS = 1 << 38
LARGEST_HEADER = 1 << 24  # the names and shapes of some hundred thousand tensors


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]") -> None:
    """Write named tensors to one safetensors file. Not atomic: call it inside `new_folder`."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
        path.chmod(0o644)  # like the files beside it; the library makes it readable for its owner only
    except SafetensorError as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        if code is None:
            raise
        with writing(path):
            raise OSError(int(code[1]), os.strerror(int(code[1]))) from error


def parse_tensors(data: bytes, where: Path) -> "dict[str, Tensor]":
    """Return the named tensors of a safetensors file from its bytes."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    header = int.from_bytes(data[:8], "little")
    if len(data) < 8 or header > min(LARGEST_HEADER, len(data) - 8):
        raise FolderError(f"{where}: not a safetensors file (its header does not fit into it)")
    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise FolderError(f"{where}: not a safetensors file: {error}") from None
