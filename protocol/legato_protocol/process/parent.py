"""Processes that end with their parent, whatever kills it; `names.ENV_PARENT` has the parent's id."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> bool:
    """Asks the kernel to kill this process when its parent dies. False if the process `parent` is gone already.

    If the kernel has no such option (not Linux), only a closed pipe or socket shows that the parent died.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent
