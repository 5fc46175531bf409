"""Sizes and workers of pools: limits, the GPU budget, and who starts, drains and is replaced. Pure."""
