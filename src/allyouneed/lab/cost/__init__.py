"""Table 1 of the 2017 paper, measured: FLOPs, seconds, bytes, path length."""
