"""Table 1 of the 2017 paper, measured: FLOPs, time, memory, path length."""
