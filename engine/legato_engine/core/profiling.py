"""Records the next steps when the server orders it, in the thread that computes them.

The thread works in order, so the recording starts before the next step and stops after the last one of the order.
"""

import threading
from collections.abc import Callable
from pathlib import Path

from legato_engine.core.compute import Compute
from legato_engine.core.frames import Profiled, ProfileOrder
from legato_engine.errors import ProfileFailed
from legato_engine.mailbox import Mailbox
from legato_engine.runner.interface import StepProfiler


class Profiling:
    """Follows one order at a time. `fileno` is readable when `take` has its outcome."""

    def __init__(self, compute: Compute, profiler: StepProfiler, clock: Callable[[], float]) -> None:
        self.ranges = profiler.ranges
        self._compute = compute
        self._profiler = profiler
        self._clock = clock
        self._outcomes: Mailbox[Profiled] = Mailbox()
        self._recording = False  # only the compute thread uses it
        self._order: ProfileOrder | None = None
        self._launched = 0  # steps that were in flight when the order came
        self._left = 0  # steps to record
        self._deadline = 0.0

    def begin(self, order: ProfileOrder, launched: int) -> None:
        """Starts to record; `launched` steps are in flight already. The server sends one order at a time."""
        assert self._order is None
        self._order, self._launched, self._left = order, launched, order.steps
        self._deadline = self._clock() + order.timeout
        self._compute.run(self._start)

    def count_step(self) -> None:
        """A step was processed."""
        if self._order is None or not self._left:
            return
        if self._launched:
            self._launched -= 1
            return
        self._left -= 1
        if not self._left:
            path = Path(self._order.path)
            self._compute.run(lambda: self._stop(lambda: self._write(path)))

    def expire(self) -> None:
        """Gives up an order whose steps were not computed in time."""
        if self._order is None or not self._left or self._clock() < self._deadline:
            return
        done, self._left = self._order.steps - self._left, 0
        why = f"{done or 'none'} of {self._order.steps} steps were computed within {self._order.timeout:g} s"
        self._compute.run(lambda: self._stop(lambda: self._outcomes.put(Profiled(why))))

    def take(self) -> Profiled | None:
        """The outcome of the order, once."""
        if not (outcomes := self._outcomes.take()):
            return None
        self._order, self._left = None, 0
        return outcomes[0]

    def fileno(self) -> int:
        return self._outcomes.fileno()

    def _start(self) -> None:
        try:
            self._profiler.start()
        except ProfileFailed as error:
            self._outcomes.put(Profiled(str(error)))
        else:
            self._recording = True

    def _stop(self, then: Callable[[], None]) -> None:
        """Stops to record, unless it failed to start, which was reported."""
        if not self._recording:
            return
        self._recording = False
        try:
            self._profiler.stop()
        except ProfileFailed as error:
            self._outcomes.put(Profiled(str(error)))
        else:
            then()

    def _write(self, path: Path) -> None:
        """Writes in another thread, so that steps go on."""

        def write() -> None:
            try:
                self._profiler.write(path)
            except ProfileFailed as error:
                self._outcomes.put(Profiled(str(error)))
            else:
                self._outcomes.put(Profiled())

        threading.Thread(target=write, name="profile", daemon=True).start()
