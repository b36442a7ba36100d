"""What a model must know of its task, and a task of its model: how many ids there are."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """How many different ids come in and go out."""

    source: int  # ids of the source (encoder-decoder, encoder); unused by a decoder
    target: int  # ids of the target, or classes
    shared: bool = False  # whether source and target ids mean the same tokens
