"""Holds back answers about demand until it changes, so that an idle service costs its operator few requests."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from legato_protocol.wire.demand import LONGEST_WAIT

CHECK_EVERY = 1.0  # seconds; a request that is queued does not wait for the next check
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class DemandWatch:
    """Waits for changes of one gateway's demand."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False

    def notify(self) -> None:
        """Wakes all callers: a request was queued."""
        for each in self._waiting:
            if not each.done():
                each.set_result(None)

    def close(self) -> None:
        """Ends all waits, now and from now on: this gateway stops."""
        self._closed = True
        self.notify()

    async def wait(self, changed: Callable[[], bool], seconds: float, receive: Receive) -> None:
        """Waits until `changed`, for at most `seconds` and `LONGEST_WAIT`, or until the caller disconnects.

        `receive` is ASGI's.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + min(seconds, LONGEST_WAIT)
        left = asyncio.ensure_future(_disconnect(receive))
        try:
            while not (self._closed or left.done() or changed()) and (rest := until - loop.time()) > 0:
                await self._pause(min(rest, CHECK_EVERY), left)
        finally:
            left.cancel()

    async def _pause(self, seconds: float, left: asyncio.Future[None]) -> None:
        """Waits for a queued request or a disconnected caller."""
        notified: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(notified)
        try:
            await asyncio.wait((notified, left), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.discard(notified)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
