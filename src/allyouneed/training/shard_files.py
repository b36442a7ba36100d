"""Save a checkpoint: rank 0 alone, or every process its rows. `checkpoint.py` describes the files.

torch.distributed.checkpoint would do the same, but it describes its files in a pickle and sends pickles between
processes; here nothing is ever unpickled. What it would add, tensors cut along any axis, is not needed: all are cut by
rows.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from allyouneed.storage import sync_files
from allyouneed.training.checkpoint import Checkpoints, write_parts
from allyouneed.training.process_group import ProcessGroup

Parts = Mapping[str, Mapping[str, Tensor]]


def save_checkpoint(
    checkpoints: Checkpoints,
    group: ProcessGroup,
    step: int,
    tensors: Parts,
    state: Mapping[str, Any],
    best: bool,
    *,
    sharded: bool,
) -> None:
    """Save a checkpoint. All processes call this; `sharded`: each holds other rows, and writes them."""
    if sharded:
        _save_shards(checkpoints, group, step, tensors, state, best)
    else:
        group.on_rank0(lambda: checkpoints.save(step, tensors, state, best).name)


def _save_shards(
    checkpoints: Checkpoints, group: ProcessGroup, step: int, tensors: Parts, state: Mapping[str, Any], best: bool
) -> None:
    """Rank 0 opens a folder, all processes write into it, and rank 0 renames it into place."""
    with ExitStack() as opened:

        def begin() -> str:
            writing = checkpoints.writing(step, sorted(tensors), state, best, group.size)
            return str(opened.enter_context(writing).resolve())

        folder = Path(group.on_rank0(begin))

        def write() -> None:
            write_parts(folder, _own(tensors, group), group.rank, group.size)
            sync_files(folder, f"*-{group.rank + 1:05d}-of-*")

        group.on_every_rank(write)
        group.on_rank0(opened.close)


def _own(tensors: Parts, group: ProcessGroup) -> dict[str, dict[str, Tensor]]:
    """Return what this process writes. Scalars are the same in every process; rank 0 writes them."""
    return {
        part: {name: tensor for name, tensor in named.items() if tensor.ndim or group.is_rank0}
        for part, named in tensors.items()
    }
