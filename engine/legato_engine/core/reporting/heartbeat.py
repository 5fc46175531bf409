"""A thread that reports to the server that the core lives, even while the model loads.

Each beat also has the time that the current step has taken, so that the server notices a stuck loop. Time in which the
whole process was stopped (a suspended laptop, a frozen container) is not counted.
"""

import threading
import time
from collections.abc import Callable

from legato_engine.core.channel import ServerChannel, ServerGone
from legato_engine.core.frames import Beat


class Pulse:
    """The loop's current iteration: written by the loop, read by the heartbeat.

    An iteration lasts until its step ends. Iteration 0 is the start: it lasts until the first `end`, and each sign of
    progress restarts its clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._frozen = 0.0  # seconds; only the heartbeat writes it
        # Iteration, its begin, seconds expected: one object, so that a reader never sees half an update.
        self._state: tuple[int, float | None, float] = (0, clock(), 0.0)

    def progress(self) -> None:
        """The start made progress."""
        self._state = (0, self._now(), 0.0)

    def begin(self) -> None:
        """An iteration of the loop begins, or a step has ended and its processing begins."""
        self._state = (self._state[0] + 1, self._now(), 0.0)

    def expect(self, seconds: float) -> None:
        """The current iteration's step should take this many seconds; 0: unknown."""
        iteration, began, _ = self._state
        self._state = (iteration, began, seconds)

    def end(self) -> None:
        """The loop waits, and no step is running."""
        self._state = (self._state[0], None, 0.0)

    def beat(self) -> Beat:
        iteration, began, expected = self._state
        return Beat(iteration, 0.0 if began is None else max(0.0, self._now() - began), expected)

    def discount(self, seconds: float) -> None:
        """Does not count time in which the whole process was stopped."""
        self._frozen += seconds

    def _now(self) -> float:
        return self._clock() - self._frozen


class Heartbeat(threading.Thread):
    """Beats every `interval` seconds until the server is gone.

    torch and compiled kernels release the interpreter lock while they compute.
    """

    def __init__(
        self, channel: ServerChannel, pulse: Pulse, interval: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._clock = clock
        self._channel = channel
        self._pulse = pulse
        self._interval = interval
        self._stopped = threading.Event()

    def run(self) -> None:
        last_beat = self._clock()
        while not self._stopped.wait(self._interval):
            now = self._clock()
            self._pulse.discount(max(0.0, now - last_beat - 2 * self._interval))
            last_beat = now
            try:
                self._channel.send(self._pulse.beat())
            except ServerGone:
                return

    def stop(self) -> None:
        self._stopped.set()
