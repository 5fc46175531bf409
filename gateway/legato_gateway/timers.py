"""A clock with timers, as the gateway's parts use it (an event loop is one; tests have their own), and pauses."""

import random
from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancels the call."""


class Timers(Protocol):
    """The part of an event loop that is used. Times are in seconds."""

    def time(self) -> float: ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Timer: ...

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer: ...


class Backoff:
    """Growing pauses between attempts in seconds, with jitter so that gateways do not all try again in one moment."""

    def __init__(self, first: float, most: float, jitter: Callable[[], float] = random.random) -> None:
        self._first, self._most, self._jitter = first, most, jitter
        self.reset()

    def reset(self) -> None:
        """Makes the next pause as short as the first one."""
        self._next = self._first

    def next(self) -> float:
        """Returns the next pause."""
        pause = self._next * (0.5 + self._jitter())
        self._next = min(self._next * 2, self._most)
        return pause
