"""What several mixers share: projections, caches, states and the kernels of sparse attention."""
