"""Threads that compute masks concurrently with a step.

The step has a thread for each core, and waits in every layer for the slowest one. Masks on one core would delay all
others, so they are spread over several.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from legato_engine.sampling import constrain
from legato_engine.sampling.constrain import Masks
from legato_engine.scheduler.batch import Draw

MOST_THREADS = 4  # a tenth of a mask's time needs the interpreter lock, which the step needs, too


class PendingMasks:
    """The masks of one step, being computed."""

    def __init__(self, parts: Sequence[Future[Masks]]) -> None:
        self._parts = parts

    def result(self) -> Masks:
        """Waits for all masks. Raises a thread's exception."""
        return {row: mask for part in self._parts for row, mask in part.result().items()}


class MaskThreads:
    """At most `threads` threads; each calls `begin` first.

    Each takes the next line when it is done with one, since a mask may take twenty times as long as another.
    """

    def __init__(self, threads: int, begin: Callable[[], None] = lambda: None) -> None:
        self._count = min(threads, MOST_THREADS)
        self._threads = ThreadPoolExecutor(self._count, "masks", begin)

    def start(self, draws: Sequence[Draw], rows: Sequence[int]) -> PendingMasks:
        """Starts to compute the masks; see `constrain.due`."""
        lines = constrain.due(draws, rows)
        return PendingMasks([self._threads.submit(constrain.masks, lines) for _ in range(min(self._count, len(lines)))])
