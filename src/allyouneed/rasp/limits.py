"""How large things may become, so that no program hangs or fills the memory. Each limit is far above honest use."""

from typing import Final

INPUT: Final = 10_000  # atoms of an input sequence
TEXT: Final = 10_000  # characters of a string
BITS: Final = 4_096  # of an integer
SIZE: Final = 100_000  # values in a list or dict, those of lists inside it included
LEVELS: Final = 100  # lists inside lists
STEPS: Final = 200_000  # expressions evaluated for a file, or a line at the prompt, loops and calls included
WORK: Final = 20_000_000  # pairs of positions, positions and characters computed for one of these
DEPTH: Final = 20_000  # expressions inside expressions, of all calls together
CALLS: Final = 1_000  # functions inside functions
LOADS: Final = 20  # files that load files
SOURCE: Final = 100_000  # characters of one sentence
FILE: Final = 500_000  # characters of a file
SHOWN: Final = 100_000  # characters printed for one value
GRID: Final = 200  # positions of a selector that is printed
NAMES: Final = 20_000  # values whose names are remembered for drawings
