"""A thread that tells the server that the core lives, also during steps and loads that take long."""

import threading

from legato_engine.core.channel import Channel, ServerGone
from legato_engine.core.frames import Beat


class Heartbeat(threading.Thread):
    """Beats every `interval` seconds until the server is gone. Compute gives up the interpreter lock."""

    def __init__(self, channel: Channel, interval: float) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._channel = channel
        self._interval = interval
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self._channel.send(Beat())
            except ServerGone:
                return

    def stop(self) -> None:
        self._stopped.set()
