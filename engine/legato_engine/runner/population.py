"""Takes the arena's memory from the system before blocks are used.

The system gives a process its pages when they are first touched. That can take longer than writing them does, most of
all on virtual machines, and a hand-off's blocks would wait for it.
"""

import ctypes
import os
from collections.abc import Callable
from threading import Thread

from legato_engine import memory
from legato_engine.runner.arena import Arena

PIECE = 32 << 20  # bytes at a time: other threads may map memory in between
RESERVE = 512 << 20  # bytes that must be available, or the rest is left until it is used
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14


def start(arena: Arena, available: Callable[[], int] = memory.available) -> Thread:
    """Takes all pages of `arena`, which is in the host's memory, first blocks first, and leaves their contents as they
    are. Ends early where the system has too little memory or cannot do it. The thread has the lowest priority: it uses
    idle cores only.
    """

    def run() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, 19)  # on Linux, of this thread
        _populate(arena, available)

    thread = Thread(target=run, name="populate", daemon=True)
    thread.start()
    return thread


def _populate(arena: Arena, available: Callable[[], int]) -> None:
    libc = ctypes.CDLL(None)
    for at in range(0, arena.nbytes, PIECE):
        size = min(PIECE, arena.nbytes - at)
        if available() < size + RESERVE:
            return
        if libc.madvise(ctypes.c_void_p(arena.address + at), ctypes.c_size_t(size), _POPULATE_WRITE):
            return
