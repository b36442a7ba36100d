"""Shared parts of the mixers: projections, caches, states and the kernels of sparse attention."""
