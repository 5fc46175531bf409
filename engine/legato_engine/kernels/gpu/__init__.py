"""Kernels in Triton, and their configurations. They need only torch, triton and numpy."""
