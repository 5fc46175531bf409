"""Sampling in Triton."""
