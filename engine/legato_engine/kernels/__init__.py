"""Kernels, a folder each: `naive.py` is the readable truth, `torch.py`, `numba*.py` and `triton*.py` are what backends
call, README has the maths. `paths` chooses the kernels for a processor. Triton's need only torch, triton and numpy.
"""

from importlib.util import find_spec
from pathlib import Path

if find_spec("numba"):  # a machine that only computes on a GPU may have none
    from legato_engine.kernels import compiled_cache

    compiled_cache.share_compiled(Path(__file__).parent)
    compiled_cache.compile_once()
