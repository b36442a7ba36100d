"""Decoding for any model with `step`: greedy and beam search, sampling, streaming, scoring."""

from allyouneed.decode.base import Hypothesis
from allyouneed.decode.beam import SearchConfig
from allyouneed.decode.sample import SampleConfig, sample
from allyouneed.decode.score import Scored, score
from allyouneed.decode.stream import stream
from allyouneed.decode.target_search import search
from allyouneed.decode.translate import Answer, translate

__all__ = [
    "Answer",
    "Hypothesis",
    "SampleConfig",
    "Scored",
    "SearchConfig",
    "sample",
    "score",
    "search",
    "stream",
    "translate",
]
