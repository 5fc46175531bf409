"""Triton's error for kernels that cannot be compiled or started, and its version."""

from triton import __version__
from triton.errors import TritonError

VERSION: str = __version__
__all__ = ["VERSION", "TritonError"]
