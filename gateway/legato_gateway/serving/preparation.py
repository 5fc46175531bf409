"""Where bodies become requests, off the event loop: short ones in threads, long ones in processes if there are such.

Tokenizing takes about a second per 300 kB, so long bodies wait for one another and never hold up short ones. The
longest are read one at a time: what is built of one may take ten times its bytes until it is known to be too much.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

from legato_gateway.serving.body_turns import VERY_LARGE
from legato_gateway.serving.preparation_forks import PreparationForks

LONG = 65_536  # bytes
AT_ONCE = 2  # of each kind

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class PreparationPool:
    """Runs the work of one gateway. Whoever stops waiting takes back what has not begun, and ends a process at once."""

    def __init__(self, forks: PreparationForks | None = None) -> None:
        self._forks = forks
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._largest = asyncio.Lock()  # reading one takes up to ten times its size
        self._short = ThreadPoolExecutor(AT_ONCE, "prepare-short")
        self._long = ThreadPoolExecutor(AT_ONCE, "prepare-long")

    async def run(self, prepare: Callable[[bytearray], _T], body: bytearray, more: int = 0) -> _T:
        """What `prepare` returns or raises for `body`, pickled where that is long together with the `more` bytes that
        `prepare` brings to be read."""
        is_long = len(body) + more >= LONG
        if is_long and self._forks is not None:
            async with self._largest if len(body) > VERY_LARGE else nullcontext(), self._turns:
                try:
                    return await self._forks.run(prepare, body)
                except OSError as error:
                    _log.warning("a large body is read in a thread, no process can be had for it: %s", error)
        lane = self._long if is_long else self._short
        return await asyncio.get_running_loop().run_in_executor(lane, partial(prepare, body))
