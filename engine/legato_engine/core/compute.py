"""The thread in which the model is loaded and every step is computed, so that the core's loop goes on meanwhile.

It is one thread, since OpenMP gives every thread that computes a team of its own. Kernels and torch give up the
interpreter lock.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from legato_engine.mailbox import Mailbox
from legato_engine.scheduler.batch import StepOutput

_T = TypeVar("_T")


class Compute(Protocol):
    """Computes one step at a time."""

    def start(self, step: Callable[[], StepOutput]) -> None:
        """Returns at once. No other step may be under way."""
        ...

    def result(self) -> StepOutput | None:
        """What the step came to, once it is done; None before. Raises what the step raised."""
        ...

    def fileno(self) -> int:
        """Readable when the step is done."""
        ...


class ComputeThread:
    """Implements `Compute`. `niceness` is added to that of this thread and of those that it starts, as OpenMP's."""

    def __init__(self, niceness: int = 0) -> None:
        # On Linux, a priority is a thread's own.
        self._thread = ThreadPoolExecutor(1, "compute", os.nice, (niceness,))
        self._done: Mailbox[Future[StepOutput]] = Mailbox()

    def call(self, work: Callable[[], _T]) -> _T:
        """Does `work` there and waits for it; for the start."""
        return self._thread.submit(work).result()

    def start(self, step: Callable[[], StepOutput]) -> None:
        self._thread.submit(step).add_done_callback(self._done.put)

    def result(self) -> StepOutput | None:
        done = self._done.take()
        return done[0].result() if done else None

    def fileno(self) -> int:
        return self._done.fileno()
