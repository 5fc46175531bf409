"""Waits for what happens elsewhere: in a process, or on an API server."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


async def until(condition: Callable[[], Any], *wanted: Any, seconds: float = 300.0, every: float = 0.05) -> None:
    """Waits until `condition`, a function or an async one, holds, or gives the value that is wanted.

    Raises TimeoutError after `seconds`.
    """
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            found = await found if inspect.isawaitable(found) else found
            if found == wanted[0] if wanted else found:
                return
            await asyncio.sleep(every)
