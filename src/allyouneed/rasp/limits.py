"""Size limits, so that no program hangs or exhausts memory. Each is far above legitimate use."""

from typing import Final

INPUT: Final = 10_000  # atoms of an input sequence
TEXT: Final = 10_000  # characters of a string
BITS: Final = 4_096  # of an integer
SIZE: Final = 100_000  # values in a list or dict, including nested ones
LEVELS: Final = 100  # nesting of lists
STEPS: Final = 200_000  # expressions evaluated for a file or a line at the prompt, including loops and calls
WORK: Final = 20_000_000  # pairs of positions, positions and characters computed for a file or a line
DEPTH: Final = 20_000  # nesting of expressions, over all open calls
CALLS: Final = 1_000  # nesting of function calls
LOADS: Final = 20  # nesting of loaded files
SOURCE: Final = 100_000  # characters of one sentence
FILE: Final = 500_000  # characters of a file
SHOWN: Final = 100_000  # characters printed for one value
GRID: Final = 200  # positions of the largest selector that is printed
NAMES: Final = 20_000  # names kept for drawings
