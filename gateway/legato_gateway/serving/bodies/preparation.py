"""Prepares bodies off the event loop: short ones in threads, long ones in processes if available.

Tokenizing takes about a second per 300 kB, hence long bodies wait for each other and never delay short ones. Decoding
JSON holds the interpreter's lock: 8 MiB of many small values take a tenth of a second, which in a thread stops all
streams. The longest are read one at a time: the objects built from one may take ten times its bytes before it is known
to be too large.
"""

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from typing import Any, TypeVar
from zlib import crc32

from legato_gateway.errors import InternalFault
from legato_gateway.serving.bodies.slots import VERY_LARGE
from legato_protocol.process.parent import die_with_parent

LONG = 65_536  # bytes
CONCURRENT = 2  # of each kind
_START = 32_768  # leading bytes of a body, equal for all turns of a chat
NICENESS = 10  # of the processes, so that the gateway does not wait for them on one CPU

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class PreparationPool:
    """Runs the work of one gateway. A cancelled call is dropped if it has not started."""

    def __init__(self, processes: Sequence[Executor] = ()) -> None:
        """`processes` prepare long bodies, one at a time each; without any, threads do."""
        self._largest = asyncio.Lock()
        self._short = ThreadPoolExecutor(CONCURRENT, "prepare-short")
        self._long = list(processes) or [ThreadPoolExecutor(CONCURRENT, "prepare-long")]
        self._work: list[list[Future[Any]]] = [[] for _ in self._long]  # unfinished work, by executor

    async def run(self, prepare: Callable[[bytearray], _T], body: bytearray, more: int = 0) -> _T:
        """Calls `prepare` with `body`, and pickles both if they are long.

        `more` are further bytes that `prepare` brings along to be read. Raises InternalFault if the process was killed.
        """
        if len(body) + more < LONG:
            return await asyncio.wrap_future(self._short.submit(prepare, body))
        async with self._largest if len(body) > VERY_LARGE else nullcontext():
            number = self._executor_for(body)
            executor = self._long[number]
            try:
                work = executor.submit(prepare, body)
                self._work[number].append(work)
                return await asyncio.wrap_future(work)
            except BrokenProcessPool:
                if self._long[number] is executor:
                    _log.warning("a process that read a large body was killed: a thread reads its share now")
                    self._long[number] = ThreadPoolExecutor(1, "prepare-long")
                raise InternalFault("the process that read this body was killed") from None

    def _executor_for(self, body: bytearray) -> int:
        """Returns the number of the executor that has read bodies with this start, and has their tokens cached; of
        another if that has less to do."""
        self._work = [[work for work in each if not work.done()] for each in self._work]
        usual, left = crc32(memoryview(body)[:_START]) % len(self._long), list(map(len, self._work))
        return usual if left[usual] == min(left) else left.index(min(left))


def start_processes() -> tuple[ProcessPoolExecutor, ...]:
    """Forks processes for long bodies, each an executor, which share the memory of everything loaded so far.

    Call it before there are other threads, sockets and an event loop: the processes would keep them.
    """
    context = multiprocessing.get_context("fork")
    processes = [ProcessPoolExecutor(1, context, _begin, (os.getpid(),)) for _ in range(CONCURRENT)]
    for each in processes:
        each.submit(int).result()  # the first task forks it
    return tuple(processes)


def end_processes(processes: Iterable[ProcessPoolExecutor]) -> None:
    """Ends them immediately, also if one still reads the body of a client that left.

    Waits for the pool's own thread: a pool that is still closing when Python exits may write to a closed pipe.
    """
    for process in multiprocessing.active_children():
        process.kill()
    for each in processes:
        each.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    if not die_with_parent(parent):
        sys.exit()
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway decides when they end
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.freeze()  # collecting would copy the shared memory
