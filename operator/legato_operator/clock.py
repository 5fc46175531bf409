"""Time as the operator sees it, so that tests bring their own."""

import asyncio
import datetime
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def timestamp(self) -> str:
        """The same as RFC 3339 text with microseconds, so that names sorted by it are in order of creation."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """This machine's clock."""

    def now(self) -> float:
        return time.time()

    def timestamp(self) -> str:
        return datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
