"""Errors that count as a kernel that cannot be compiled."""

import pytest

from legato_engine.backends.cuda.compiling import compiling
from legato_engine.errors import KernelFailed
from legato_engine.kernels.gpu.errors import TritonError


@pytest.mark.parametrize("error", [TritonError("no such block"), RuntimeError("PassManager::run failed")])
def test_failures_of_the_compiler_are_the_kernels(error):
    with pytest.raises(KernelFailed, match=f"cannot compile or start a kernel on sm_90: {error}"), compiling("sm_90"):
        raise error


def test_others_are_not():
    """A device that has failed raises a RuntimeError, too."""
    with pytest.raises(RuntimeError, match="device-side assert"), compiling("sm_90"):
        raise RuntimeError("CUDA error: device-side assert triggered")
