"""The tokens that a batch may generate with a shortlist (shortlist/table.py), and their logits.

    token_NL      the tokens that each of N sources allows, in order; the longest list has L
    logits_BL     = x_BD W_tokens^T + b    for each row's own tokens, minus infinity after the end of its list

A step computes L instead of V logits, in one of three ways:

- lists, in int8: each row is multiplied with the head's rows for its own tokens, in place;
- union, in float32: the head's rows for all tokens that any source of the batch allows are gathered and packed once, so
  that they serve all rows; each row then takes its own logits. (The float32 weights of each row's own list would not
  fit into a cache.)
- the full head, if the lists or the union are long: each row takes its own logits.

What a row generates depends on its own source only. Probabilities are among the tokens of its list (and PAD and BOS,
which are never generated).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from allyouneed.decode.base import device_of
from allyouneed.errors import ConfigError
from allyouneed.inference.head import head_of_lists, head_of_tokens, with_head
from allyouneed.models import Model
from allyouneed.shortlist.table import Shortlist

# A token of a list costs as much as this many tokens of the full head: the head's weights serve all rows, those of a
# list only the rows that share it.
LIST_COST = 5
# A union of more than one in this many tokens is not worth gathering.
UNION_SHARE = 2


class BatchShortlist:
    """The allowed tokens of a batch. `model` computes their logits, `row_logits` arranges them: PAD and BOS first."""

    def __init__(self, model: Model, shortlist: Shortlist, sources: Sequence[Sequence[int]], rows: int = 1) -> None:
        """`rows`: rows of logits for each source."""
        device, size, most = device_of(model), model.head.size, len(shortlist.ends)
        if any(token >= most for source in sources for token in source):
            raise ConfigError(f"a shortlist of {most:,} source words, but a source has others; it is another model's")
        if shortlist.last >= size:
            raise ConfigError(f"a shortlist with words up to {shortlist.last:,}, but the model has {size:,}")
        token_NL, count_N = shortlist.lists(sources)
        N, L = token_NL.shape
        self.model = model
        self._token_NL = token_NL.to(device)
        self._column_NL: Tensor | None = None  # where a row's own tokens are among the logits of `model`
        self._absent_NL: Tensor | None = None
        self._lists = head_of_lists(model.head, token_NL, count_N) if size * rows >= L * LIST_COST else None
        if self._lists is not None:
            self.model = with_head(model, self._lists)
            return
        allowed_V = torch.zeros(size, dtype=torch.bool)
        allowed_V[token_NL] = True
        union_U = allowed_V.nonzero()[:, 0]
        head = head_of_tokens(model.head, union_U.to(device)) if len(union_U) * UNION_SHARE <= size else None
        if head is not None:
            self.model, token_NL = with_head(model, head), (allowed_V.cumsum(0) - 1)[token_NL]
        if head is None or N > 1:
            self._column_NL = token_NL.to(device)
            self._absent_NL = (torch.arange(L) >= count_N[:, None]).to(device)

    def keep_sources(self, kept_M: Tensor) -> None:
        """Keep some of the sources that are still in the batch."""
        self._token_NL = self._token_NL[kept_M]
        if self._lists is not None:
            self._lists.keep_groups(kept_M)
        if self._column_NL is not None and self._absent_NL is not None:
            self._column_NL, self._absent_NL = self._column_NL[kept_M], self._absent_NL[kept_M]

    def row_logits(self, logits: Tensor) -> Tensor:
        """Return the logits (B, L) of each row's own tokens, from the output of `model`."""
        if self._column_NL is None or self._absent_NL is None:
            return logits
        N, L = self._column_NL.shape
        column_NKL = self._column_NL[:, None].expand(-1, logits.shape[0] // N, -1)
        own_NKL = logits.view(N, -1, logits.shape[1]).gather(2, column_NKL)
        return own_NKL.masked_fill_(self._absent_NL[:, None], float("-inf")).view(-1, L)

    def token_ids(self, place_NC: Tensor) -> Tensor:
        """Return the ids of tokens from their places in the lists of their sources."""
        return self._token_NL.gather(1, place_NC)
