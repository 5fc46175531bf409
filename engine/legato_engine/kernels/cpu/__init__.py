"""Kernels for processors, compiled by numba."""
