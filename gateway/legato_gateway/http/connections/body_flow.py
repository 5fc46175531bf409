"""Limits reading of a large body to what the application asks for, and measures how long its client could send.

uvicorn reads ahead of the application: up to 64 KiB and one more piece per connection, uncounted.
"""

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class BodyFlow(FlowControl):
    """The flow control of one connection. `clock` is in seconds."""

    def __init__(self, transport: asyncio.Transport, clock: Callable[[], float]) -> None:
        super().__init__(transport)
        self._clock = clock
        self._cycle: RequestResponseCycle | None = None  # the latest request, whose body is read
        self._large = False
        self._size = 0  # bytes of its body
        self._since = clock()  # when reading resumed
        self._reading = 0.0

    def begin(self, cycle: RequestResponseCycle) -> None:
        """Starts a request whose body was not read yet."""
        self._cycle, self._size = cycle, 0
        self._large = announced(cycle) > HIGH_WATER_LIMIT
        if self._large:
            self.pause_reading()

    def received(self, size: int) -> None:
        """Counts `size` more bytes of its body. A large body is then paused until the application wants more."""
        self._size += size
        self._large = self._large or self._size > HIGH_WATER_LIMIT
        if self._large and self._cycle is not None and not self._cycle.response_complete:
            self.pause_reading()

    def pause_reading(self) -> None:
        if not self.read_paused:
            self._reading += self._clock() - self._since
        super().pause_reading()

    def resume_reading(self) -> None:
        """Resumes reading, unless the application has yet to take the last piece."""
        if self._cycle is not None and self._cycle.body and not self._cycle.response_complete:
            return
        if self.read_paused:
            self._since = self._clock()
        super().resume_reading()

    def forget_time(self) -> None:
        """Resets the time."""
        self._since, self._reading = self._clock(), 0.0

    def seconds_reading(self) -> float:
        """Returns the seconds for which this connection was read since the reset."""
        return self._reading + (0.0 if self.read_paused else self._clock() - self._since)


def announced(cycle: RequestResponseCycle) -> int:
    """Returns the bytes of its body according to the head; 0 if it has no length."""
    said = (value for name, value in cycle.scope["headers"] if name == b"content-length" and value.isdigit())
    return int(next(said, b"0"))
