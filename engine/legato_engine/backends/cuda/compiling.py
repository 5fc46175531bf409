"""Maps failures of Triton to the engine's errors."""

from collections.abc import Iterator
from contextlib import contextmanager

from legato_engine.errors import KernelFailed
from legato_engine.kernels.gpu.errors import VERSION, TritonError

PASS_FAILED = "PassManager::run failed"  # text of a plain RuntimeError of Triton, whose reason went to stderr


@contextmanager
def compiling(chip: str) -> Iterator[None]:
    """Raises KernelFailed. Kernels are compiled by their first launch; `chip` is for the text."""
    try:
        yield
    except (TritonError, RuntimeError) as error:
        if not isinstance(error, TritonError) and PASS_FAILED not in str(error):
            raise
        raise KernelFailed(f"Triton {VERSION} cannot compile or start a kernel on {chip}: {error}") from error
