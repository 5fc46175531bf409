"""A clock and its alarms, as the gateway's parts are given them. An event loop is one; tests have their own."""

from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """A call that is to come."""

    def cancel(self) -> None:
        """It does not come."""


class Timers(Protocol):
    """What is used of an event loop. Times are in seconds."""

    def time(self) -> float: ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Timer: ...

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer: ...
