"""Implementations of a model's layers: `torch` on any device, `cpu` and `cuda` with compiled kernels.

A backend packs weights, owns the buffers of a step, works out its attention metadata and chooses operators.
"""
