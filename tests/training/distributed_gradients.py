"""Gradients of every architecture and mixer, sharded by rows over several processes, against those of one process.

    PYTHONPATH=src:tests:tests/contracts torchrun --nproc-per-node 2 tests/training/distributed_gradients.py

Prints one line of JSON: the largest difference of each case, in float64 with dropout.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

import mixer_contracts
import test_models
import torch

from allyouneed.config import parse
from allyouneed.dropout import seed_dropout
from allyouneed.errors import UserError
from allyouneed.models import Model
from allyouneed.models.decoder import DecoderConfig
from allyouneed.sizes import Sizes
from allyouneed.tasks.base import Batch
from allyouneed.tasks.loss import losses
from allyouneed.training.parallel import Parallelism, Whole
from allyouneed.training.process_group import ProcessGroup
from allyouneed.training.shards import Shards

MICRO_BATCHES = 4


def cases() -> Iterator[tuple[str, Model, int | None]]:
    """Yield every architecture, and a decoder for each mixer, in segments if the mixer keeps a memory of them."""
    for case in test_models.CASES:
        if case.number == 0 or case.name in ("memn2n", "show-attend-tell"):
            yield str(case), case.build(), None
    for name, contract in mixer_contracts.CONTRACTS.items():
        config = contract.settings[0]
        if "causal" in config.roles:
            mixer = {"type": name, **config.model_dump(exclude={"type"})}
            yield f"decoder of {name}", decoder(mixer), 3 if name in ("xl", "compressive") else None
    for position in ("t5", "shaw"):  # layers share the parameters of the first
        yield f"decoder with {position}", decoder({"type": "softmax", "heads": 3}, position), None


def decoder(mixer: dict[str, Any], position: str = "none") -> Model:
    tree = {"width": 12, "hidden": 20, "layers": 2, "mixer": mixer, "positions": {"type": position}}
    return parse(DecoderConfig, tree).build(Sizes(0, test_models.TARGET)).double()


def batches(model: Model, segment: int | None, sourced: bool) -> list[Batch]:
    found = []
    for _ in range(MICRO_BATCHES):
        source_BS, target_BT = test_models.texts()
        if model.kind == "encoder":
            found.append(Batch(source_BS=source_BS, class_B=target_BT[:, 0]))
        else:
            source = source_BS if sourced else None
            found.append(Batch(source, None, target_BT[:, :-1], target_BT[:, 1:], segment=segment))
    return found


def learn(model: Model, parallelism: Parallelism, all_batches: list[Batch], numbers: range) -> None:
    tokens = sum(batch.tokens for batch in all_batches)
    for number in numbers:
        seed_dropout(100 + number)
        segments = losses(model, all_batches[number], 0.1)
        for _ in range(all_batches[number].segments):
            objective, _ = parallelism.loss(segments)
            (objective / tokens).backward()
    parallelism.add_gradients()


def difference(model: Model, segment: int | None, sourced: bool, group: ProcessGroup) -> float:
    """Return the largest difference between the rows of this process and the same rows of one process."""
    given = batches(model, segment, sourced)
    alone = copy.deepcopy(model).train()
    learn(alone, one := Whole(alone, single_process_group()), given, range(MICRO_BATCHES))
    twice = model.kind == "decoder" and sourced
    shards = Shards(model.train(), group, torch.device("cpu"), one_unit=twice)
    learn(model, shards, given, group.share(MICRO_BATCHES))
    expected = {name: parameter.grad for name, parameter in one.named_parameters()}
    worst = abs(float(one.norm()) - float(shards.norm()))
    for name, rows in shards.named_parameters():
        whole = expected[name]
        assert (whole is None) == (rows.grad is None), name
        if whole is not None and rows.grad is not None and rows.grad.numel():
            worst = max(worst, float((shards.cut({name: whole})[name] - rows.grad).abs().max()))
    return max(group.sum([worst if rank == group.rank else 0.0 for rank in range(group.size)]))


def single_process_group() -> ProcessGroup:
    group = ProcessGroup("fsdp")
    group.rank, group.size = 0, 1
    return group


def main() -> None:
    group = ProcessGroup("fsdp")
    group.join(torch.device("cpu"))
    found: dict[str, float | str] = {}
    torch.manual_seed(0)  # every process builds the same models
    for number, (name, model, segment) in enumerate(cases()):
        torch.manual_seed(number)
        for sourced in (False, True) if model.kind == "decoder" and segment is None else (True,):
            sourced = sourced and segment is None
            label = f"{name}, given a source" if sourced and model.kind == "decoder" else name
            try:
                found[label] = difference(copy.deepcopy(model), segment, sourced, group)
            except UserError as error:
                found[label] = str(error)
    if group.is_rank0:
        print(json.dumps(found))
    group.leave()


if __name__ == "__main__":
    main()
