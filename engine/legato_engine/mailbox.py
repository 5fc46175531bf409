"""A queue between threads that a selector can wait for."""

import os
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar
from weakref import finalize

_T = TypeVar("_T")


class Mailbox(Generic[_T]):
    """Any thread puts, one thread takes. `fileno` is readable from a put until the next `take`.

    The descriptor is closed with the last reference at the latest, so a thread that can still put keeps it open.
    """

    def __init__(self) -> None:
        self._items: deque[_T] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._close = finalize(self, os.close, self._wake)
        self._close.atexit = False  # at the end of the process a thread may still wait on it

    def put(self, item: _T) -> None:
        self._items.append(item)
        self.wake()

    def wake(self) -> None:
        """Makes the descriptor readable."""
        os.eventfd_write(self._wake, 1)

    def take(self) -> list[_T]:
        """Removes and returns all items, oldest first.

        They may include items that are put during this call; then the next call may return an empty list.
        """
        with suppress(BlockingIOError):  # nothing was put
            os.eventfd_read(self._wake)  # before the items are taken, so that later ones wake the reader again
        return [self._items.popleft() for _ in range(len(self._items))]

    def fileno(self) -> int:
        return self._wake

    def close(self) -> None:
        """Closes the descriptor. No thread may put afterwards: the number may belong to another file then."""
        self._close()
