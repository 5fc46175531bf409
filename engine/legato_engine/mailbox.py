"""A queue from one thread to another that a selector can wait for."""

import os
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar
from weakref import finalize

_T = TypeVar("_T")


class Mailbox(Generic[_T]):
    """Any thread puts, one thread takes. Readable (`fileno`) from a put until the next `take`.

    Its descriptor is closed at the latest when nobody has it any more: who could still put keeps it.
    """

    def __init__(self) -> None:
        self._items: deque[_T] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._close = finalize(self, os.close, self._wake)
        self._close.atexit = False  # at the end of the process a thread may still wait for it

    def put(self, item: _T) -> None:
        self._items.append(item)
        self.wake()

    def wake(self) -> None:
        """Make it readable."""
        os.eventfd_write(self._wake, 1)

    def take(self) -> list[_T]:
        """All that was put, oldest first. What is put meanwhile may be among it: then the next take is empty."""
        with suppress(BlockingIOError):  # nothing was put
            os.eventfd_read(self._wake)  # before the items are taken: what comes later wakes again
        return [self._items.popleft() for _ in range(len(self._items))]

    def fileno(self) -> int:
        return self._wake

    def close(self) -> None:
        """Only once nobody puts any more: the number may be another file's by then."""
        self._close()
