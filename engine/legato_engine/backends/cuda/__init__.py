"""Layers computed by Triton and cuBLAS, for CUDA devices. Steps that only decode are replayed as CUDA graphs."""
