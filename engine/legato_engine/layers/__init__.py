"""Layers that models are built of: each owns its weights and calls kernels."""
