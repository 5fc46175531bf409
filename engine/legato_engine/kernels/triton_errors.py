"""What Triton raises where a kernel cannot be compiled or started, and which Triton it is."""

from triton import __version__
from triton.errors import TritonError

VERSION: str = __version__
__all__ = ["VERSION", "TritonError"]
