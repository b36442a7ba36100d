"""What is learnt: one file for each task or family of tasks, and the table of all of them."""

from typing import Annotated

from pydantic import SerializeAsAny

from allyouneed.config import choice
from allyouneed.tasks.algorithms import (
    AdditionConfig,
    AssociativeRecallConfig,
    CopyConfig,
    ListOpsConfig,
    ReverseConfig,
    SortConfig,
)
from allyouneed.tasks.babi import BabiConfig
from allyouneed.tasks.base import Batch, Loss, Score, Split, TaskConfig, TaskData, Units
from allyouneed.tasks.binary import BinaryAdditionConfig, BinaryMultiplicationConfig
from allyouneed.tasks.bits import CopyBitsConfig, PrioritySortConfig, RecallBitsConfig, RepeatCopyConfig
from allyouneed.tasks.captioning import CaptioningConfig
from allyouneed.tasks.classification import ClassificationConfig
from allyouneed.tasks.images import ImagesConfig
from allyouneed.tasks.language import LanguageConfig
from allyouneed.tasks.numbers import DatesConfig, NumbersConfig
from allyouneed.tasks.rasp import RaspCausalConfig, RaspConfig
from allyouneed.tasks.tags import TagsConfig
from allyouneed.tasks.translation import TranslationConfig

TASKS: dict[str, type[TaskConfig]] = {
    "translation": TranslationConfig,
    "numbers": NumbersConfig,
    "dates": DatesConfig,
    "language": LanguageConfig,
    "classification": ClassificationConfig,
    "images": ImagesConfig,
    "babi": BabiConfig,
    "captioning": CaptioningConfig,
    "copy": CopyConfig,
    "reverse": ReverseConfig,
    "sort": SortConfig,
    "addition": AdditionConfig,
    "associative-recall": AssociativeRecallConfig,
    "listops": ListOpsConfig,
    "copy-bits": CopyBitsConfig,
    "repeat-copy": RepeatCopyConfig,
    "recall-bits": RecallBitsConfig,
    "priority-sort": PrioritySortConfig,
    "binary-addition": BinaryAdditionConfig,
    "binary-multiplication": BinaryMultiplicationConfig,
    "rasp": RaspConfig,
    "rasp-causal": RaspCausalConfig,
    "tags": TagsConfig,
}

AnyTask = Annotated[SerializeAsAny[TaskConfig], choice(TASKS)]

__all__ = [
    "TASKS",
    "AnyTask",
    "Batch",
    "Loss",
    "Score",
    "Split",
    "TaskConfig",
    "TaskData",
    "Units",
]
