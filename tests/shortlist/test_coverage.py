"""The coverage of a shortlist."""

import pytest
import torch

from allyouneed.shortlist.coverage import coverage, pairs_of_batches
from allyouneed.shortlist.table import Shortlist
from allyouneed.tasks import Batch
from allyouneed.text.specials import EOS, PAD


def test_coverage_is_that_of_words() -> None:
    """By hand: of 5, 6 and 7, 5 and 6 are allowed. EOS does not count: every source allows it."""
    some = Shortlist(torch.arange(4), torch.tensor([5, 6]), torch.tensor([0, 0, 0, 0, 0, 1, 2]))
    source_BS, output_BT = torch.tensor([[5, EOS, PAD], [6, 5, EOS]]), torch.tensor([[5, EOS, PAD], [6, 7, EOS]])
    batch = Batch(source_BS=source_BS, output_BT=output_BT)
    found = coverage(some, pairs_of_batches([batch]))
    assert (found.share, found.words) == (pytest.approx(2 / 3), 5.5)
