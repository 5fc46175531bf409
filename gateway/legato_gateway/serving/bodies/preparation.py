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
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from typing import TypeVar

from legato_gateway.errors import InternalFault
from legato_gateway.serving.bodies.slots import VERY_LARGE
from legato_protocol.process.parent import die_with_parent

LONG = 65_536  # bytes
CONCURRENT = 2  # of each kind
NICENESS = 10  # of the processes, so that the gateway does not wait for them on one CPU

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class PreparationPool:
    """Runs the work of one gateway. A cancelled call is dropped if it has not started."""

    def __init__(self, processes: Executor | None = None) -> None:
        """`processes` prepare long bodies; None: threads do."""
        self._largest = asyncio.Lock()
        self._short = ThreadPoolExecutor(CONCURRENT, "prepare-short")
        self._long: Executor = processes or ThreadPoolExecutor(CONCURRENT, "prepare-long")

    async def run(self, prepare: Callable[[bytearray], _T], body: bytearray, more: int = 0) -> _T:
        """Calls `prepare` with `body`, and pickles both if they are long.

        `more` are further bytes that `prepare` brings along to be read. Raises InternalFault if the process was killed.
        """
        lane = self._long if len(body) + more >= LONG else self._short
        async with self._largest if len(body) > VERY_LARGE else nullcontext():
            try:
                return await asyncio.get_running_loop().run_in_executor(lane, prepare, body)
            except BrokenProcessPool:
                if self._long is lane:
                    _log.warning("a process that read a large body was killed: large bodies are read in threads now")
                    self._long = ThreadPoolExecutor(CONCURRENT, "prepare-long")
                raise InternalFault("the process that read this body was killed") from None


def start_processes() -> ProcessPoolExecutor:
    """Forks processes for long bodies, which share the memory of everything loaded so far.

    Call it before there are threads, sockets and an event loop: the processes would keep them.
    """
    processes = ProcessPoolExecutor(CONCURRENT, multiprocessing.get_context("fork"), _begin, (os.getpid(),))
    processes.submit(int).result()  # the first task forks all of them
    return processes


def end_processes(processes: ProcessPoolExecutor) -> None:
    """Ends them immediately, also if one still reads the body of a client that left.

    Waits for the pool's own thread: a pool that is still closing when Python exits may write to a closed pipe.
    """
    for process in multiprocessing.active_children():
        process.kill()
    processes.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    if not die_with_parent(parent):
        sys.exit()
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway decides when they end
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.freeze()  # collecting would copy the shared memory
