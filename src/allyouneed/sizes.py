"""What a task and a model must agree on: the number of ids, and the form of the data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The number of different ids that a model reads and generates."""

    source: int  # ids of the source (encoder-decoder, encoder); unused by a decoder
    target: int  # ids of the target, or classes
    shared: bool = False  # whether source and target ids mean the same tokens


@dataclass(frozen=True)
class Traits:
    """The form of a task's data, known from its settings alone. A model config checks it before any data is read."""

    type: str  # of the task
    per_position: bool = False  # one class for each position of the source, not one for the whole source
    bits: int | None = None  # ids are vectors of this many bits
    image: tuple[int, int] | None = None  # sources are images: pixels a side, values a pixel
    segment: int | None = None  # tokens per segment; the state is carried from segment to segment
