"""Comparisons of models at an equal budget, over several seeds."""
