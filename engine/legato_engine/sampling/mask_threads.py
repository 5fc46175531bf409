"""Threads that compute masks beside a step.

The step has a thread for each core, and waits in every layer for the slowest of them: masks that one core computes
hold the others up as long, so they are spread over as many.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from legato_engine.sampling import constrain
from legato_engine.sampling.constrain import Masks
from legato_engine.scheduler.batch import Draw

MOST_THREADS = 4  # a tenth of a mask's time needs the interpreter's lock, as the step does, too


class PendingMasks:
    """Those of one step, on their way."""

    def __init__(self, parts: Sequence[Future[Masks]]) -> None:
        self._parts = parts

    def result(self) -> Masks:
        """Waits for all of them. Raises what one of the threads raised."""
        return {row: mask for part in self._parts for row, mask in part.result().items()}


class MaskThreads:
    """At most `threads`; each calls `begin` first. It takes a line whenever it is done with one: a mask may cost twenty
    times as much as another."""

    def __init__(self, threads: int, begin: Callable[[], None] = lambda: None) -> None:
        self._count = min(threads, MOST_THREADS)
        self._threads = ThreadPoolExecutor(self._count, "masks", begin)

    def start(self, draws: Sequence[Draw], rows: Sequence[int]) -> PendingMasks:
        """Returns at once; see `constrain.due`."""
        lines = constrain.due(draws, rows)
        return PendingMasks([self._threads.submit(constrain.masks, lines) for _ in range(min(self._count, len(lines)))])
