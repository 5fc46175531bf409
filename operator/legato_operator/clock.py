"""The operator's clock, which tests replace."""

import asyncio
import datetime
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Returns the seconds since the epoch."""
        ...

    def timestamp(self) -> str:
        """Returns the time as RFC 3339 text with microseconds, which sorts in order of creation."""
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
