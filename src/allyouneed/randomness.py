"""Randomness addressed by (seed, address): the same numbers at any time, in any process."""

import numpy as np


def generator(seed: int, *address: int) -> np.random.Generator:
    """A private source of randomness for one address. The numbers depend on nothing else."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *address])))
