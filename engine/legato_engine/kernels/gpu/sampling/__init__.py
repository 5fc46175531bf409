"""Sampling by Triton."""
