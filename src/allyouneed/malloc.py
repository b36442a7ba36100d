"""One setting of the C library that matters for tensors on a CPU."""

import ctypes


def keep_freed_memory() -> None:
    """Make glibc keep large freed buffers: returning them after each step costs 10 to 25 % in page faults.

    It affects the whole process, so only our own processes call it: a command, a training run, a benchmark.
    """
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    except (OSError, AttributeError):  # another libc; slower, not wrong
        return
