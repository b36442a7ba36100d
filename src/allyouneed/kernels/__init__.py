"""The operations of a decoding step, in C; torch does the same where no C compiler is found.

    build.py      compile, load, `usable`
    header.py     the interface, read from kernels.h: structs and functions by name
    steps.py      norms, attention of one query, the best or a sampled token of each row
    products.py   projections of a few rows on packed weights, in float32, half precision or int8
    coded.c       weights in bfloat16, packed in 12 bits without loss
    adapted.py    the same with an adapter beside the weights
    stack.py      a whole stack of ordinary blocks as one call
    threads.c     a large product shared among threads

Kernels take float32 on a CPU and give no gradients: callers check `usable`, and have torch's operations as well.

Measured on a CPU of 2.8 GHz with AVX-512, one thread: 32 rows through a matrix of 768 x 256 take 90 microseconds
(torch: 118), of 8,000 x 256 1.1 ms (1.65), with int8 0.3 ms; one query a row over 24 slots 54 (torch's fused attention:
150), the best of 8,000 tokens for 32 rows 0.17 ms (0.47).
"""

from allyouneed.kernels.adapted import AdaptedMatrix
from allyouneed.kernels.build import usable
from allyouneed.kernels.products import KINDS, LinesInt8, OutputLists, Packed, PackedInt8, few_rows, several_threads
from allyouneed.kernels.steps import add_norm, attend, gather, sample_tokens, top_tokens

__all__ = [
    "KINDS",
    "AdaptedMatrix",
    "LinesInt8",
    "OutputLists",
    "Packed",
    "PackedInt8",
    "add_norm",
    "attend",
    "few_rows",
    "gather",
    "sample_tokens",
    "several_threads",
    "top_tokens",
    "usable",
]
