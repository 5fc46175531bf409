"""Registers, tiles and small functions that kernels for processors consist of."""
