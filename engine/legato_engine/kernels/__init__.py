"""Kernels, a folder each: `naive.py` is the readable truth, `cpu.py` the fast path on a processor, README the maths."""
