"""A thread that tells the server that the core lives, also while a load takes long.

It tells how long a step has taken so far, too: a loop that is stuck must not hide behind a heart that beats. Time in
which the heart itself stood still (a stopped process, a frozen container) is not counted.
"""

import threading
import time
from collections.abc import Callable

from legato_engine.core.channel import Channel, ServerGone
from legato_engine.core.frames import Beat


class Pulse:
    """Where the loop is: written by the loop, read by the heartbeat. A turn lasts as long as its step. Turn 0 is the
    start, from one sign of progress to the next: it goes on until the first `end`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stood_still = 0.0  # seconds, written by the heartbeat alone
        # Turn, its begin, seconds expected: one object, so that a reader never sees half of it.
        self._state: tuple[int, float | None, float] = (0, clock(), 0.0)

    def progress(self) -> None:
        """The start has come further."""
        self._state = (0, self._now(), 0.0)

    def begin(self) -> None:
        """A turn of the loop has begun, or a step has ended and what follows it has begun."""
        self._state = (self._state[0] + 1, self._now(), 0.0)

    def expect(self, seconds: float) -> None:
        """The step of the turn that has begun should take so long; 0: unknown."""
        turn, began, _ = self._state
        self._state = (turn, began, seconds)

    def end(self) -> None:
        """The loop goes to wait, and no step is under way."""
        self._state = (self._state[0], None, 0.0)

    def beat(self) -> Beat:
        turn, began, expected = self._state
        return Beat(turn, 0.0 if began is None else max(0.0, self._now() - began), expected)

    def stood_still(self, seconds: float) -> None:
        """The whole process did."""
        self._stood_still += seconds

    def _now(self) -> float:
        return self._clock() - self._stood_still


class Heartbeat(threading.Thread):
    """Beats every `interval` seconds until the server is gone.

    torch and compiled kernels give up the interpreter lock while they compute.
    """

    def __init__(
        self, channel: Channel, pulse: Pulse, interval: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._clock = clock
        self._channel = channel
        self._pulse = pulse
        self._interval = interval
        self._stopped = threading.Event()

    def run(self) -> None:
        beaten = self._clock()
        while not self._stopped.wait(self._interval):
            now = self._clock()
            self._pulse.stood_still(max(0.0, now - beaten - 2 * self._interval))
            beaten = now
            try:
                self._channel.send(self._pulse.beat())
            except ServerGone:
                return

    def stop(self) -> None:
        self._stopped.set()
