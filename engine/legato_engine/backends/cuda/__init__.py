"""Layers by Triton's kernels and cuBLAS, for CUDA devices. Steps that only decode are replayed as CUDA graphs."""
