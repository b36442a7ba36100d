"""How large things may become, so that no program hangs or fills the memory. Each limit is far above honest use."""

from typing import Final

INPUT: Final = 10_000  # atoms of an input sequence
TEXT: Final = 100_000  # characters of a string
BITS: Final = 4_096  # of an integer
SIZE: Final = 100_000  # values in a list or dict, those of lists inside it included
STEPS: Final = 100_000  # expressions and statements evaluated for one input line, loops and calls included
WORK: Final = 20_000_000  # pairs of positions and single positions computed for one result
CALLS: Final = 100  # functions inside functions
LOADS: Final = 20  # files that load files
NESTING: Final = 200  # brackets inside brackets, and other parts inside parts of a sentence
SOURCE: Final = 1_000_000  # characters of a file or of one statement
SHOWN: Final = 1_000_000  # characters printed for one result
