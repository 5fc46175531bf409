"""Tells those who wait for it that a request is held: who scales a service from zero hears of it at once."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from legato_protocol.demand import LONGEST_WAIT

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class HeldWatch:
    """Of one gateway. `held` counts the requests that are held now."""

    def __init__(self, held: Callable[[], int]) -> None:
        self._held = held
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """A request is held."""
        for each in self._waiting:
            if not each.done():
                each.set_result(None)

    async def wait(self, seconds: float, receive: Receive) -> None:
        """Until a request is held, for so many seconds and `LONGEST_WAIT` at most, or until who asked is gone, as
        `receive` of ASGI tells."""
        if self._held():
            return
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone = asyncio.ensure_future(_disconnect(receive))
        self._waiting.add(told)
        try:
            await asyncio.wait((told, gone), timeout=min(seconds, LONGEST_WAIT), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.discard(told)
            gone.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
