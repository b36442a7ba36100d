"""Counts in sentences: 1 run, 2 runs."""


def plural(count: float, noun: str) -> str:
    """The noun as it stands after such a count. All of ours take an s."""
    return noun if count == 1 else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """A count with its noun: 1 run, 2,000 runs."""
    return f"{count:,} {plural(count, noun)}"
