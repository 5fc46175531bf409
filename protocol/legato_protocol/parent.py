"""Processes that end with the one that started them, whatever kills it: `names.ENV_PARENT` tells them which it is."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> bool:
    """Asks the kernel to kill this process when its parent dies. False when the parent `parent` is gone already.

    Where the kernel has no such option (not Linux), the other end of a pipe or socket has to tell.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent
