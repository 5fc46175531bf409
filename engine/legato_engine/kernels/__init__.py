"""Kernels: `reference` has readable ones and the maths; backends call `torch`, `cpu` (numba) and `gpu` (Triton).

`paths` chooses the kernels for a processor. The kernels of `gpu` need only torch, triton and numpy.
"""
