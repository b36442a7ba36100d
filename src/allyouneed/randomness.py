"""Randomness addressed by (seed, address): the same numbers at any time, in any process."""

import numpy as np


def generator(seed: int, *address: int) -> np.random.Generator:
    """Return a random generator for one address. Its numbers depend only on seed and address."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *address])))
