"""Evaluation of a finished model: scores on held-out data or files, and probabilities of given texts."""
