"""Times kernels on a GPU."""

from collections.abc import Callable

from triton.testing import do_bench


def seconds(launch: Callable[[], None]) -> float:
    """The median of a launch on the device, with a cold L2 cache."""
    return float(do_bench(launch, return_mode="median")) / 1e3
