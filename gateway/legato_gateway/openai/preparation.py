"""The threads in which bodies become requests: few, and none that anything but preparing waits for.

Tokenizing takes about a second per 300 kB, so long bodies wait for one another and never hold up short ones.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LONG = 65_536  # bytes
THREADS = 2  # of each kind

_T = TypeVar("_T")


class PreparationPool:
    """Runs the work of one gateway. Whoever stops waiting takes back what has not begun."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(THREADS, "prepare-short")
        self._long = ThreadPoolExecutor(THREADS, "prepare-long")

    async def run(self, size: int, work: Callable[[], _T]) -> _T:
        """What `work` returns or raises, for a body of `size` bytes."""
        lane = self._long if size >= LONG else self._short
        return await asyncio.get_running_loop().run_in_executor(lane, work)
