"""CPU kernels, compiled by numba once for all processes of a user."""

from pathlib import Path

from legato_engine.kernels.cpu import compiled_cache

compiled_cache.share_compiled(Path(__file__).parents[1])
compiled_cache.compile_once()
