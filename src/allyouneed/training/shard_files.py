"""A checkpoint that every process writes its share of: see `checkpoint.py` for its files.

torch.distributed.checkpoint would do the same, but describes what it has written in a pickle, and sends more of them
from process to process; here nothing is ever unpickled. What it would add, tensors cut in any direction, has no use
where all are cut by rows.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from allyouneed.storage import sync_files
from allyouneed.training.checkpoint import Checkpoints, write_parts
from allyouneed.training.process_group import ProcessGroup


def save_shards(
    checkpoints: Checkpoints,
    team: ProcessGroup,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    best: bool,
) -> None:
    """The first process opens a folder, all write into it, and the first one puts it in its place."""
    with ExitStack() as opened:

        def begin() -> str:
            writing = checkpoints.writing(step, sorted(tensors), state, best, team.size)
            return str(opened.enter_context(writing).resolve())

        folder = Path(team.first(begin))

        def write() -> None:
            write_parts(folder, _own(tensors, team), team.rank, team.size)
            sync_files(folder, f"*-{team.rank + 1:05d}-of-*")

        team.each(write)
        team.first(opened.close)


def _own(tensors: Mapping[str, Mapping[str, Tensor]], team: ProcessGroup) -> dict[str, dict[str, Tensor]]:
    """Single numbers are the same everywhere; the first process writes them."""
    return {
        part: {name: tensor for name, tensor in named.items() if tensor.ndim or team.is_first}
        for part, named in tensors.items()
    }
