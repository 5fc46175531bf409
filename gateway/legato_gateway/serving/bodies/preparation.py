"""Prepares bodies off the event loop: short ones in threads, long ones in processes if available.

Tokenizing takes about a second per 300 kB, hence long bodies wait for each other and never delay short ones. The
longest are read one at a time: the objects built from one may take ten times its bytes before it is known to be too
large.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

from legato_gateway.serving.bodies.preparation_forks import PreparationForks
from legato_gateway.serving.bodies.slots import VERY_LARGE

LONG = 65_536  # bytes
CONCURRENT = 2  # of each kind

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class PreparationPool:
    """Runs the work of one gateway. A cancelled call is dropped if it has not started, and its process ends."""

    def __init__(self, forks: PreparationForks | None = None) -> None:
        self._forks = forks
        self._slots = asyncio.Semaphore(CONCURRENT)
        self._largest = asyncio.Lock()  # reading one takes up to ten times its size
        self._short = ThreadPoolExecutor(CONCURRENT, "prepare-short")
        self._long = ThreadPoolExecutor(CONCURRENT, "prepare-long")

    async def run(self, prepare: Callable[[bytearray], _T], body: bytearray, more: int = 0) -> _T:
        """Calls `prepare` with `body`, and pickles both if they are long.

        `more` are further bytes that `prepare` brings along to be read.
        """
        is_long = len(body) + more >= LONG
        if is_long and self._forks is not None:
            async with self._largest if len(body) > VERY_LARGE else nullcontext(), self._slots:
                try:
                    return await self._forks.run(prepare, body)
                except OSError as error:
                    _log.warning("a large body is read in a thread, no process can be had for it: %s", error)
        lane = self._long if is_long else self._short
        return await asyncio.get_running_loop().run_in_executor(lane, partial(prepare, body))
