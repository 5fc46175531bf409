"""Searches one pool or two, their degrees and sizes, the chunk and `slo.tpot` for the fewest GPUs on a workload."""
