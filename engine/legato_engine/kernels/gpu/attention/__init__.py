"""Attention by Triton."""
