"""Takes the arena's memory from the system before blocks are used.

Linux allocates pages when they are first touched. On virtual machines that can take longer than writing them, and the
blocks of a hand-off would wait for it.
"""

import ctypes
import os
from collections.abc import Callable
from threading import Thread
from typing import Protocol

from legato_engine import memory

PIECE = 32 << 20  # bytes at a time: other threads may map memory in between
RESERVE = 512 << 20  # bytes that must stay available; otherwise the remaining pages are allocated on first use
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14


class HostMemory(Protocol):
    """A span of the host's memory."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


def start(*spans: HostMemory, available: Callable[[], int] = memory.available) -> Thread:
    """Starts a thread that allocates the pages of an arena on the host and its slots, in the order of blocks.

    Contents stay as they are. The thread ends early if memory gets scarce or the system lacks the call; it runs at the
    lowest priority, so that it uses idle cores only.
    """

    def run() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, 19)  # on Linux, of this thread
        for span in spans:
            _populate(span, available)

    thread = Thread(target=run, name="populate", daemon=True)
    thread.start()
    return thread


def _populate(arena: HostMemory, available: Callable[[], int]) -> None:
    libc = ctypes.CDLL(None)
    for at in range(0, arena.nbytes, PIECE):
        size = min(PIECE, arena.nbytes - at)
        if available() < size + RESERVE:
            return
        if libc.madvise(ctypes.c_void_p(arena.address + at), ctypes.c_size_t(size), _POPULATE_WRITE):
            return
