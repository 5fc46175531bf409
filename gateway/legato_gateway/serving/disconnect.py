"""Clients that disconnect, according to ASGI's `receive`."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

_T = TypeVar("_T")


async def disconnected(receive: Receive) -> None:
    """Waits until the client disconnects. The whole body must have been read from `receive`, or not matter."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_left(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Awaits `work`. Cancels it and raises ClientDisconnect if the client disconnects first.

    The whole body must have been read from `receive`.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return await working
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
