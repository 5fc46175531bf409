"""Memory that was freed and that the C library keeps for later."""

import ctypes


def give_back() -> None:
    """Returns freed memory to the system: most of what a load took is never needed again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc alone has it
        trim(ctypes.c_size_t(0))
