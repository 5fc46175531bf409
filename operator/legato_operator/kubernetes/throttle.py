"""When the API server asks to be left alone: nobody asks it anything until the time that it named has passed."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

LONGEST = 20.0  # seconds; who names more is asked again after that, so that no pass looks like one that has stopped
UNNAMED = 1.0  # what the API server itself names as a rule


class Throttle:
    """Shared by all calls of one client."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._sleep = sleep
        self._pauses = 0
        self._open = asyncio.Event()
        self._open.set()

    async def wait_open(self) -> None:
        """Until no pause is under way."""
        await self._open.wait()

    async def pause(self, seconds: float) -> None:
        """Nobody passes `wait_open` for so long."""
        self._pauses += 1
        self._open.clear()
        try:
            await self._sleep(seconds)
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._open.set()


def retry_after(headers: Mapping[str, str]) -> float:
    """The pause that an answer asks for, in seconds."""
    try:
        return min(LONGEST, max(0.0, float(headers.get("Retry-After", UNNAMED))))
    except ValueError:  # a date, which the API server never sends
        return UNNAMED
