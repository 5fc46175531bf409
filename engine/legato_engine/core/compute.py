"""The thread that loads the model and computes every step, so that the core's loop is never blocked.

It is a single thread, since OpenMP creates a team of threads for every thread that computes. Kernels and torch release
the interpreter lock.
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
        """Starts a step and returns immediately. No other step may be running."""
        ...

    def run(self, work: Callable[[], None]) -> None:
        """Runs `work`, which raises nothing, after the step that is running and before later ones."""
        ...

    def result(self) -> StepOutput | None:
        """The finished step's output; None while the step runs. Raises the step's exception."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when the step has finished."""
        ...


class ComputeThread:
    """Implements `Compute`. The thread and the threads that it starts, such as OpenMP's, get this `niceness`."""

    def __init__(self, niceness: int = 0) -> None:
        # On Linux, each thread has its own niceness.
        self._thread = ThreadPoolExecutor(1, "compute", os.nice, (niceness,))
        self._done: Mailbox[Future[StepOutput]] = Mailbox()

    def call(self, work: Callable[[], _T]) -> _T:
        """Runs `work` in the thread and returns its result; used for the start."""
        return self._thread.submit(work).result()

    def start(self, step: Callable[[], StepOutput]) -> None:
        self._thread.submit(step).add_done_callback(self._done.put)

    def run(self, work: Callable[[], None]) -> None:
        self._thread.submit(work)

    def result(self) -> StepOutput | None:
        done = self._done.take()
        return done[0].result() if done else None

    def fileno(self) -> int:
        return self._done.fileno()
