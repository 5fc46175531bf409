"""Kernels: `reference` is the readable truth with the maths; backends call `torch`, `cpu` (numba) and `gpu` (Triton).

`paths` chooses the kernels for a processor. The kernels of `gpu` need only torch, triton and numpy.
"""

from importlib.util import find_spec
from pathlib import Path

if find_spec("numba"):  # a machine that only computes on a GPU may have none
    from legato_engine.kernels.cpu import compiled_cache

    compiled_cache.share_compiled(Path(__file__).parent)
    compiled_cache.compile_once()
