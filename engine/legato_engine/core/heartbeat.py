"""A thread that tells the server that the core lives, also while a load takes long.

It tells how long a step has taken so far, too: a loop that is stuck must not hide behind a heart that beats.
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
        self._state: tuple[int, float | None] = (0, clock())  # one object, so that a reader never sees half of it

    def progress(self) -> None:
        """The start has come further."""
        self._state = (0, self._clock())

    def begin(self) -> None:
        """A turn of the loop has begun, or a step has ended and what follows it has begun."""
        self._state = (self._state[0] + 1, self._clock())

    def end(self) -> None:
        """The loop goes to wait, and no step is under way."""
        self._state = (self._state[0], None)

    def beat(self) -> Beat:
        turn, began = self._state
        return Beat(turn, 0.0 if began is None else self._clock() - began)


class Heartbeat(threading.Thread):
    """Beats every `interval` seconds until the server is gone.

    torch and compiled kernels give up the interpreter lock while they compute.
    """

    def __init__(self, channel: Channel, pulse: Pulse, interval: float) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._channel = channel
        self._pulse = pulse
        self._interval = interval
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self._channel.send(self._pulse.beat())
            except ServerGone:
                return

    def stop(self) -> None:
        self._stopped.set()
