"""A batch whose rows may say only what a shortlist allows their sources (tasks/shortlist.py).

    logits_BN = x_BD W_ND^T + b_N        N: the words that any source of the batch allows
    logits_bn = -inf                     where the source of row b does not allow word n

The rows of the head are gathered once for a batch; a step is a product with N instead of V columns. Rows that leave
leave their words there: to gather again would take longer than a few more columns do. What a row says depends on its
own source alone, and probabilities are among the words that it allows (and PAD and BOS, which nobody says).

Cost: of the last projection and the choice of words N / V, and one more pass over N numbers a row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from allyouneed.decode.base import device_of
from allyouneed.errors import ConfigError
from allyouneed.models import Model
from allyouneed.tasks.shortlist import Shortlist


class Listed:
    """The words of a batch. `model` gives their logits: column n is word `word_N[n]`, and PAD and BOS are the first."""

    def __init__(self, model: Model, shortlist: Shortlist, sources: Sequence[Sequence[int]]) -> None:
        words, most = model.head.weight_VD.shape[0], len(shortlist.ends)
        if any(word >= most for source in sources for word in source):
            raise ConfigError(f"a source holds a word that the shortlist of {most:,} source words does not know")
        allowed_BV = shortlist.allowed(sources, words)
        word_N = allowed_BV.any(dim=0).nonzero()[:, 0]
        allowed_BN = allowed_BV[:, word_N]
        device = device_of(model)
        self.word_N = word_N.to(device)
        self.model = model.with_head(model.head.of_words(self.word_N))
        barred_BN = torch.zeros(allowed_BN.shape).masked_fill_(~allowed_BN, float("-inf"))
        # What is added to the logits of each row, and to those of the rows that are left; None: all may say the same.
        self._every = self._left = None if bool(allowed_BN.all()) else barred_BN.to(device)

    def only(self, row_B: Tensor) -> None:
        """Rows with these numbers are left of the batch."""
        if self._every is not None and self._left is not None and len(row_B) < len(self._left):
            self._left = self._every.index_select(0, row_B)

    def bar(self, logits_BN: Tensor) -> Tensor:
        """The logits, in place, without what a row may not say. Each row may stand there several times in a row."""
        if self._left is None:
            return logits_BN
        rows, columns = self._left.shape
        return logits_BN.view(rows, -1, columns).add_(self._left[:, None]).view(-1, columns)
