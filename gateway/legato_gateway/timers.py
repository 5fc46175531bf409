"""A clock with timers, as the gateway's parts use it. An event loop is one; tests have their own."""

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
