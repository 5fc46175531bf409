"""Writes rounds periodically. A failure is reported once and retried; it does not affect the service."""

from collections.abc import Callable

from legato_cli.errors import ServiceUnavailable
from legato_cli.recording.recording_file import RecordingFile
from legato_cli.recording.sources import ReadRound
from legato_operator.autoscaler.decide import DECIDE_EVERY
from legato_operator.clock import Clock
from legato_simulator.replay import signal_round
from legato_simulator.replay.signal_round import SignalRound


class SignalRecorder:
    """Records one service to one file. `say` is called with problems and recoveries."""

    def __init__(self, read: ReadRound, file: RecordingFile, clock: Clock, say: Callable[[str], None]) -> None:
        self._read, self._file, self._clock, self._say = read, file, clock, say
        self._problem = ""  # the last reported one
        self._lost = 0  # rounds lost by it
        self._last = float("-inf")
        self.rounds = 0  # written

    async def run(self, seconds: float = float("inf")) -> None:
        """Records for `seconds`. Raises ServiceUnavailable if the service cannot be reached at the beginning."""
        began = self._clock.now()
        self._write(await self._read())
        due = began + DECIDE_EVERY
        while due - began < seconds:
            await self._clock.sleep(max(0.0, due - self._clock.now()))
            due = max(due, self._clock.now()) + DECIDE_EVERY
            try:
                self._write(await self._read())
            except ServiceUnavailable as error:
                self._failed(str(error))

    def _write(self, made: SignalRound) -> None:
        if made.time <= self._last:
            self._failed(f"the clock was set back by {self._last - made.time:.0f} s or more")
            return
        try:
            self._file.write(signal_round.encode(made))
        except OSError as error:
            self._failed(f"cannot write: {error.strerror or error}")
            return
        self.rounds, self._last = self.rounds + 1, made.time
        if self._problem:
            self._say(f"records again; {self._lost} rounds are missing")
            self._problem, self._lost = "", 0

    def _failed(self, problem: str) -> None:
        self._lost += 1
        kind = problem.split(" by ")[0]
        if kind != self._problem:
            self._say(f"{problem}; trying again")
            self._problem = kind
