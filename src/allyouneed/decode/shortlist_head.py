"""A batch whose rows may say only what a shortlist allows their sources (shortlist/table.py).

    word_NL       the words that each of N sources allows, in order; the longest list has L
    logits_BL     = x_BD W_words^T + b    of each row's own words, minus infinity behind the end of its list

So a step looks at L instead of V words. There are three ways to their logits:

- lists, in int8: each row is multiplied with the rows of the head that it wants, where they lie;
- union, in float32: rows of the head are gathered and packed once for all words that any source of the batch allows, so
  that they serve all rows; each row then takes its own logits. (A row's own weights in float32 would be more than a
  cache holds.)
- the whole head, where lists or the union are long: each row takes its own logits.

What a row says depends on its own source alone, and probabilities are among the words that it allows (and PAD and BOS,
which nobody says).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from allyouneed.decode.base import device_of
from allyouneed.errors import ConfigError
from allyouneed.inference.head import head_of_lists, head_of_tokens, with_head
from allyouneed.models import Model
from allyouneed.shortlist.table import Shortlist

# A word of a list takes as long as so many of a whole head, whose weights serve all rows, and those of a list the rows
# that share it.
ALONE = 5
# A union of more than one in so many words is not worth gathering.
GATHERED = 2


class Listed:
    """The words of a batch. `model` computes their logits, `own` are those of each row: PAD and BOS come first."""

    def __init__(self, model: Model, shortlist: Shortlist, sources: Sequence[Sequence[int]], rows: int = 1) -> None:
        """`rows`: of logits for each source."""
        device, size, most = device_of(model), model.head.weight_VD.shape[0], len(shortlist.ends)
        if any(word >= most for source in sources for word in source):
            raise ConfigError(f"a shortlist of {most:,} source words, but a source holds others; it is another model's")
        if shortlist.last >= size:
            raise ConfigError(f"a shortlist with words up to {shortlist.last:,}, but the model has {size:,}")
        word_NL, count_N = shortlist.lists(sources)
        N, L = word_NL.shape
        self.model = model
        self._word_NL = word_NL.to(device)
        self._column_NL: Tensor | None = None  # where a row's own words stand in what `model` gives
        self._absent_NL: Tensor | None = None
        self._lists = head_of_lists(model.head, word_NL, count_N) if size * rows >= L * ALONE else None
        if self._lists is not None:
            self.model = with_head(model, self._lists)
            return
        allowed_V = torch.zeros(size, dtype=torch.bool)
        allowed_V[word_NL] = True
        union_U = allowed_V.nonzero()[:, 0]
        head = head_of_tokens(model.head, union_U.to(device)) if len(union_U) * GATHERED <= size else None
        if head is not None:
            self.model, word_NL = with_head(model, head), (allowed_V.cumsum(0) - 1)[word_NL]
        if head is None or N > 1:
            self._column_NL = word_NL.to(device)
            self._absent_NL = (torch.arange(L) >= count_N[:, None]).to(device)

    def only(self, stay_M: Tensor) -> None:
        """Of the sources that were left these are left."""
        self._word_NL = self._word_NL[stay_M]
        if self._lists is not None:
            self._lists.keep_groups(stay_M)
        if self._column_NL is not None and self._absent_NL is not None:
            self._column_NL, self._absent_NL = self._column_NL[stay_M], self._absent_NL[stay_M]

    def own(self, logits: Tensor) -> Tensor:
        """What `model` gives, as the logits (B, L) of each row's own words."""
        if self._column_NL is None or self._absent_NL is None:
            return logits
        N, L = self._column_NL.shape
        column_NKL = self._column_NL[:, None].expand(-1, logits.shape[0] // N, -1)
        own_NKL = logits.view(N, -1, logits.shape[1]).gather(2, column_NKL)
        return own_NKL.masked_fill_(self._absent_NL[:, None], float("-inf")).view(-1, L)

    def words(self, place_NC: Tensor) -> Tensor:
        """The ids of words by their places in the lists of their sources."""
        return self._word_NL.gather(1, place_NC)
