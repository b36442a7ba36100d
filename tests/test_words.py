"""Counts in sentences."""

from allyouneed.words import counted, plural


def test_singular_and_plural():
    assert [counted(count, "run") for count in (0, 1, 2, 2000)] == ["0 runs", "1 run", "2 runs", "2,000 runs"]
    assert [plural(count, "minute") for count in (0.5, 1, 1.0, 1.5)] == ["minutes", "minute", "minute", "minutes"]
