"""Decoding for any model that can step: greedy and beam search, sampling, streaming, scoring."""

from allyouneed.decode.base import Hypothesis
from allyouneed.decode.beam import SearchConfig, search
from allyouneed.decode.score import Scored, score

__all__ = ["Hypothesis", "Scored", "SearchConfig", "score", "search"]
