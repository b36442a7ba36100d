"""A class for each token of a text, by a model from elsewhere (`allyouneed import`) whose data are not known.

It is measured on a file that is given: text TAB classes, with blanks between them, one for each token.
"""

from pathlib import Path
from typing import Literal

from allyouneed.errors import ConfigError
from allyouneed.tasks.base import TaskConfig, TaskData


class TagsConfig(TaskConfig):
    summary = "a class for each token, by a model from elsewhere: it can be measured, not trained"
    paper = "Devlin et al. 2019, arXiv:1810.04805"
    kinds = frozenset({"encoder"})
    each = True

    type: Literal["tags"] = "tags"

    def prepare(self, folder: Path, seed: int) -> TaskData:
        raise ConfigError("task 'tags': the data of a model from elsewhere are not known; evaluate it with --data")
