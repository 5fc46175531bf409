"""Pauses all calls while the API server asks clients to wait."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

LONGEST = 20.0  # seconds; longer requested pauses are cut, so that no pass seems to have stopped
UNNAMED = 1.0  # seconds, the API server's usual request


class Throttle:
    """The pause shared by all calls of one client."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._sleep = sleep
        self._pauses = 0
        self._open = asyncio.Event()
        self._open.set()

    async def wait_open(self) -> None:
        """Waits until no pause is in progress."""
        await self._open.wait()

    async def pause(self, seconds: float) -> None:
        """Blocks `wait_open` for this duration."""
        self._pauses += 1
        self._open.clear()
        try:
            await self._sleep(seconds)
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._open.set()


def retry_after(headers: Mapping[str, str]) -> float:
    """Returns the pause that an answer requests, in seconds."""
    try:
        return min(LONGEST, max(0.0, float(headers.get("Retry-After", UNNAMED))))
    except ValueError:  # a date, which the API server never sends
        return UNNAMED
