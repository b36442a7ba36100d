"""A class for each token of a text, for an imported model (`allyouneed import`) whose training data is not known.

It is measured on a given file: text TAB classes, separated by blanks, one for each token.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from allyouneed.errors import ConfigError
from allyouneed.tasks.base import Batch, Score, TaskConfig, TaskData
from allyouneed.tasks.collate import tag_batch
from allyouneed.tasks.scores import exact_match
from allyouneed.text.codec import Codec
from allyouneed.text.lines import Pair


class TagsConfig(TaskConfig):
    summary = "a class for each token, by an imported model: for evaluation, not for training"
    paper = "Devlin et al. 2019, arXiv:1810.04805"
    kinds = frozenset({"encoder"})
    per_position = True

    type: Literal["tags"] = "tags"

    def as_batch(self, codec: Codec, items: Sequence[Pair]) -> Batch:
        return tag_batch(codec, items)

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        return [exact_match(hypotheses, references)]

    def prepare(self, folder: Path, seed: int) -> TaskData:
        raise ConfigError("task 'tags': the data of an imported model is not known; evaluate it with --data")
