"""Notifies waiting callers when a request is queued, so that a service is scaled up from zero immediately."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from legato_protocol.wire.demand import LONGEST_WAIT

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class QueueWatch:
    """Watches the queue of one gateway. `queued` returns the number of queued requests."""

    def __init__(self, queued: Callable[[], int]) -> None:
        self._queued = queued
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wakes all callers: a request was queued."""
        for each in self._waiting:
            if not each.done():
                each.set_result(None)

    async def wait(self, seconds: float, receive: Receive) -> None:
        """Waits until a request is queued, for at most `seconds` and `LONGEST_WAIT`, or until the caller disconnects.

        `receive` is ASGI's.
        """
        if self._queued():
            return
        notified: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = asyncio.ensure_future(_disconnect(receive))
        self._waiting.add(notified)
        try:
            await asyncio.wait(
                (notified, left), timeout=min(seconds, LONGEST_WAIT), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            self._waiting.discard(notified)
            left.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
